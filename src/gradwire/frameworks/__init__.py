"""Other frameworks: NumPy, JAX, TensorFlow and Keras arrays through a session. None is loaded unless asked for."""
