"""What every process stands on: settings, command line, supervisor, wire framing, telemetry, link shaping."""
