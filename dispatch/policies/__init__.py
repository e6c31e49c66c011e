"""Policies: each maps one situation to a worker per sample, in its own file behind dispatch.assign.situation.Policy."""
