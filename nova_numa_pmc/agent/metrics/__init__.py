# SPDX-License-Identifier: Apache-2.0
"""The agent's metrics for Prometheus: the families, and the endpoint that serves scrapes."""
