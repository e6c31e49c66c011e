"""The exact solvers on a GPU, through cupy."""
