# SPDX-License-Identifier: Apache-2.0
BUILDING: str
SHELVED_OFFLOADED: str
