# SPDX-License-Identifier: Apache-2.0
import ctypes

LIBNUMA: ctypes.CDLL
