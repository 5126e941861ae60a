# SPDX-License-Identifier: Apache-2.0
"""Guests held to their places and moved, by the agent and by commands: how, and in whose turn.

moving makes what was planned, of legs; reassertion writes cpusets again; turn, pausing and
history are files that the agent and the commands share.
"""
