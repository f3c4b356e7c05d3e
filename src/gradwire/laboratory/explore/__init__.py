"""The page of `gradwire explore`: `answer` computes what is shown, `server` shows it with sliders."""
