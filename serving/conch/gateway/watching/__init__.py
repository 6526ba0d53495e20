"""What tells of requests: metrics, access log, traces, dashboard."""
