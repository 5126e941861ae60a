# SPDX-License-Identifier: Apache-2.0
"""Benchmarks and their helpers.

Each ``bench_*`` is a program that prints its figures next to those that they are compared with.
"""
