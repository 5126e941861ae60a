#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# devstack runs this with MODE and PHASE: `enable_plugin nova-numa-pmc URL` in local.conf.
#
# The steps are those of the operator's guide: doc/source/install/index.rst and
# doc/source/admin/{agent,nova}.rst.

# shellcheck disable=SC2154  # DEST, NOVA_CONF … are devstack's
numa_pmc_xtrace=$(set +o | grep xtrace)
set +o xtrace

NUMA_PMC_DIR=$DEST/nova-numa-pmc
NUMA_PMC_CLASSES=nova_numa_pmc.scheduler

# For nova-scheduler and nova-compute, with the Python that runs them. Not editable: Nova loads
# the monitor only from a directory of its own.
function install_numa_pmc_in_nova {
    pip_install --no-deps "$NUMA_PMC_DIR"
}

# For the hook and the agent: an environment made with the interpreter that the hook runs.
function install_numa_pmc_on_host {
    sudo /usr/bin/python3 -m venv "$NUMA_PMC_VENV"
    sudo "$NUMA_PMC_VENV/bin/pip" install "${NUMA_PMC_DIR}[tools]"
    sudo ln -sf "$NUMA_PMC_VENV/bin/nova-numa-rebalance" /usr/local/sbin/
    sudo ln -sf "$NUMA_PMC_VENV/bin/nova-numa-agent" /usr/local/sbin/
}

function configure_numa_pmc_scheduler {
    local filters
    filters=$(iniget "$NOVA_CONF" filter_scheduler enabled_filters)
    filters=${filters:-ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,ServerGroupAffinityFilter}
    # After the cheap filters, before Nova's own for NUMA, which takes far longer.
    filters=,$filters,
    filters=${filters//,NUMAPressureFilter,/,}
    filters=${filters//,NUMATopologyFilter,/,}
    filters=${filters#,}NUMAPressureFilter,NUMATopologyFilter
    iniset "$NOVA_CONF" filter_scheduler enabled_filters "$filters"
    iniset_multiline "$NOVA_CONF" filter_scheduler available_filters \
        nova.scheduler.filters.all_filters "$NUMA_PMC_CLASSES.filter.NUMAPressureFilter"
    iniset "$NOVA_CONF" filter_scheduler weight_classes \
        "nova.scheduler.weights.all_weighers,$NUMA_PMC_CLASSES.weigher.NUMAPressureWeigher"
    iniset "$NOVA_CONF" numa_pmc weight_multiplier "$NUMA_PMC_WEIGHT_MULTIPLIER"
}

function configure_numa_pmc_compute {
    # devstack copies this file to $NOVA_CPU_CONF when it starts nova-compute.
    iniset "$NOVA_CONF" DEFAULT compute_monitors cpu.numa_pmc
}

function start_numa_pmc {
    sudo /usr/local/sbin/nova-numa-rebalance hook install --reload
    sudo cp "$NUMA_PMC_VENV/share/nova-numa-pmc/systemd/nova-numa-agent.service" \
        /etc/systemd/system/
    # Debian's and Ubuntu's kernels then require CAP_SYS_ADMIN for counting.
    if [[ $(cat /proc/sys/kernel/perf_event_paranoid) -gt 2 ]]; then
        sudo install -D -m 644 -t /etc/systemd/system/nova-numa-agent.service.d \
            "$NUMA_PMC_VENV/share/nova-numa-pmc/systemd/perf-paranoid.conf"
    fi
    sudo systemctl daemon-reload
    sudo systemctl enable --now nova-numa-agent
}

function stop_numa_pmc {
    sudo systemctl disable --now nova-numa-agent || true
    if [[ -x /usr/local/sbin/nova-numa-rebalance ]]; then
        sudo /usr/local/sbin/nova-numa-rebalance hook remove || true
    fi
}

function cleanup_numa_pmc {
    sudo rm -rf "$NUMA_PMC_VENV" /etc/systemd/system/nova-numa-agent.service*
    sudo rm -f /usr/local/sbin/nova-numa-{rebalance,agent}
    sudo systemctl daemon-reload
}

if [[ $1 == stack && $2 == install ]]; then
    echo_summary "Installing nova-numa-pmc"
    if is_service_enabled n-sch n-cpu; then
        install_numa_pmc_in_nova
    fi
    if is_service_enabled n-cpu; then
        install_numa_pmc_on_host
    fi
elif [[ $1 == stack && $2 == post-config ]]; then
    echo_summary "Configuring nova-numa-pmc"
    if is_service_enabled n-sch; then
        configure_numa_pmc_scheduler
    fi
    if is_service_enabled n-cpu; then
        configure_numa_pmc_compute
    fi
elif [[ $1 == stack && $2 == extra ]]; then
    if is_service_enabled n-cpu; then
        start_numa_pmc
    fi
elif [[ $1 == unstack ]]; then
    stop_numa_pmc
elif [[ $1 == clean ]]; then
    cleanup_numa_pmc
fi

$numa_pmc_xtrace
