"""Export: a version of the model as a folder that other programs load without Freshet."""
