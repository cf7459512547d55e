/* Connections whose ends arrive late: the NIC of a rank reads nothing of those that it has until the test
 * says otherwise, neither what the peer says of its end nor that the connection is closed. */
#ifndef EPW_TESTS_LATE_ENDS_H
#define EPW_TESTS_LATE_ENDS_H

#include "group.h"

#include "nic/fabric.h"
#include "nic/soft/parts.h"

static inline uint32_t freeze_links(epw_nic *nic, bool frozen) {
    uint32_t count = 0;
    epw_nic_lock(nic);
    for (uint32_t i = 0; i < nic->link_count; i++) {
        if (nic->links[i] == NULL) continue;
        nic->links[i]->frozen = frozen;
        count++;
    }
    epw_nic_unlock(nic);
    return count;
}

static inline void hold_ends(epw_fabric *fabric) {
    epw_nic *nic = epw_fabric_nic(fabric);
    AWAIT(freeze_links(nic, false) == 2); /* each rank has dialed one */
    CHECK(freeze_links(nic, true) == 2);
}

static inline void let_ends_arrive(epw_fabric *fabric) {
    epw_nic *nic = epw_fabric_nic(fabric);
    freeze_links(nic, false);
    epw_nic_wake(nic);
}

#endif
