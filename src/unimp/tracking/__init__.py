"""Progress on the terminal, and metrics for TensorBoard, W&B and MLflow."""
