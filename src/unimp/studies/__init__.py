"""The paper's tables and figures, each as a study that runs on any task."""
