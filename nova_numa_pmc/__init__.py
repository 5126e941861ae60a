"""NUMA-aware placement for OpenStack Nova and libvirt/KVM, by measured pressure."""
