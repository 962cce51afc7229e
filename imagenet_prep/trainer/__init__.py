"""Training with TensorFlow, PyTorch or MXNet, in one process or in several ranks."""
