"""Policies by name: each file says how one policy is written, what it needs, and how it is built.

None of them loads a kernel before ``build``, so that a settings file can be checked quickly. The class of a policy with
kernels is therefore in dispatch/placement/assign; the others are next to their spec.
"""
