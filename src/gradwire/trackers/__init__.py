"""Trackers: numbers of a training run, to look at while it goes on.

    tracker = open_tracker("tensorboard:runs/topk" if rank == 0 else "none")

The spec is ``kind:where``: ``tensorboard:FOLDER``, ``wandb:PROJECT``, ``mlflow:EXPERIMENT``, or ``none``. Accounts,
servers and names of runs are set up as those packages want it (``WANDB_MODE``, ``WANDB_NAME``,
``MLFLOW_TRACKING_URI``, ...). Under DDP, one line has rank 0 send what compression does, every so many steps:

    handle.watch(every=100, tracker="tensorboard:runs/topk")

For numbers of your own beside those, a whole training loop, on each rank:

    model = DistributedDataParallel(model)
    handle = gradwire.attach(model, "topk(ratio=0.01)", nmse_every=100)
    spec = "tensorboard:runs/topk" if dist.get_rank() == 0 else "none"
    with open_tracker(spec) as tracker:
        tracker.config({"codec": "topk(ratio=0.01)", "learning_rate": 0.1})
        for step, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = loss_function(model(images), labels)
            loss.backward()
            optimizer.step()
            if step % 100 == 0:  # reading the statistics of an accelerator waits for it
                tracker.log(step, {"train_loss": loss.item()} | handle_values(handle))

Under a controller, ``level_values(handle.end_epoch().levels, controller.levels)`` adds each parameter's level.

Names in use: ``quality``, ``train_loss``, ``nmse``, ``payload_bytes``, ``sent_bytes``, ``residual_norm/total`` and
``residual_norm/<parameter>``, ``levels/<codec>`` (how many tensors have it), ``level/<parameter>``.
"""

from gradwire.trackers.tracker import NoTracker, Tracker, handle_values, level_values, open_tracker

__all__ = ["NoTracker", "Tracker", "handle_values", "level_values", "open_tracker"]
