/* Where devices are on the PCI bus, according to sysfs, and the distance between two of them. */
#ifndef EPW_NIC_BUS_H
#define EPW_NIC_BUS_H

#include <stdint.h>

enum { EPW_BUS_PATH_BYTES = 256 };

typedef struct epw_bus_place {
    char path[EPW_BUS_PATH_BYTES]; /* "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"; "": not known */
    int32_t node;                  /* NUMA node of its socket's memory; -1: not known */
} epw_bus_place;

/* The nearest first. */
typedef enum epw_bus_distance {
    EPW_BUS_SWITCH,       /* they share a switch */
    EPW_BUS_ROOT_PORT,    /* a root port */
    EPW_BUS_ROOT_COMPLEX, /* a root complex */
    EPW_BUS_SOCKET,       /* a socket */
    EPW_BUS_FAR           /* nothing in common, or one of them is not known */
} epw_bus_distance;

epw_bus_distance epw_bus_distance_of(const epw_bus_place *a, const epw_bus_place *b);

/* "behind the same switch" and so on. */
const char *epw_bus_distance_name(epw_bus_distance distance);

/* The device to which a link below `root` leads. `root`: "" for this machine's /, else a folder with the same
 * structure. The path is relative to `root`. */
void epw_bus_find_adapter(const char *root, const char *name, epw_bus_place *out);
void epw_bus_find_function(const char *root, const char *bus, epw_bus_place *out);

/* How many NVIDIA GPUs come before the one at `bus` ("0000:1a:00.0") among all GPUs of this host, whether or
 * not this process sees them: by this number ranks take turns among equally near devices. */
uint32_t epw_bus_turn_of_gpu(const char *root, const char *bus);

#endif
