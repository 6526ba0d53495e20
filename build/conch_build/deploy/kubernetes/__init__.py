"""A plan on Kubernetes: manifests, and a Helm chart whose default values give exactly them.

values.py      what a chart's user may set, with defaults and a schema
parts.py       what documents share: names, labels, security, volumes
workloads.py   the gateway's pods, on CPUs with Triton in them
engines.py     Triton's on GPUs
network.py     services, who may talk to whom, the Inference Gateway's pool
operation.py   disruptions, autoscaling, Prometheus and Grafana
chart.py       the documents as manifests and as templates
files.py       all of it, with the images' Dockerfiles
"""

from conch_build.deploy.kubernetes.files import kubernetes_files

__all__ = ["kubernetes_files"]
