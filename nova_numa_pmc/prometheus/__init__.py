# SPDX-License-Identifier: Apache-2.0
"""The agent's metrics for Prometheus: what is asked for, the families, who answers scrapes."""
