# SPDX-License-Identifier: Apache-2.0
ACTIVE: str
BUILDING: str
PAUSED: str
RESCUED: str
RESIZED: str
SHELVED_OFFLOADED: str
