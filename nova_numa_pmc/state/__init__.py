# SPDX-License-Identifier: Apache-2.0
"""The host's own files: what was promised, published, said by the operator, moved and measured."""
