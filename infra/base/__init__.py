"""What every process is based on: wire, links, storage, telemetry, faults, errors. Depends on no
other part of Freshet.
"""
