"""Into how many bins utilities are sorted (ps/utilities.py); apart from the kernels that do it, which are slow to
import.
"""

BINS = 4096
