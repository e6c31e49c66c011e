"""What every process stands on: wire, links, storage, telemetry, faults, errors. Knows no other part of Freshet."""
