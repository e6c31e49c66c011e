"""Policies by name: each file says how one policy is written, what it needs, and how it is built.

None of them loads a kernel before ``build``, so that a settings file can be checked quickly. A policy whose assignment
takes kernels therefore has its class in dispatch/placement/assign; the others have it beside their spec.
"""
