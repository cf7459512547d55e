/* See listen.h. */
#include "nic/listen.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/process.h"

/* Binds and listens; returns 0 or an errno value. Listening may also find the port taken. Called with the
 * lock held. */
static int try_port(const epw_address *address, int *fd) {
    struct sockaddr_storage name;
    socklen_t length = epw_address_to_socket(address, &name);
    *fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) return errno;
    int err = 0;
    if (!epw_fd_keep_from_child(*fd)) {
        err = ENOMEM;
        close(*fd);
    } else if (bind(*fd, (struct sockaddr *)&name, length) || listen(*fd, SOMAXCONN)) {
        err = errno;
        epw_fd_close(*fd);
    }
    return err;
}

static bool read_port(int fd, epw_address *address) {
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    epw_address bound;
    if (address->family == EPW_ADDRESS_LOCAL) return true;
    if (getsockname(fd, (struct sockaddr *)&name, &length)) return false;
    if (!epw_address_from_socket((struct sockaddr *)&name, &bound)) return false;
    address->port = bound.port;
    return true;
}

epw_status epw_listen(epw_address *address, uint16_t first, uint16_t last, epw_where where, int *fd,
                      bool *gone) {
    int err = EADDRINUSE;
    char text[EPW_ADDRESS_TEXT];
    for (uint32_t port = first; port <= last && err == EADDRINUSE; port++) {
        address->port = (uint16_t)port;
        epw_process_lock();
        err = try_port(address, fd);
        if (err == 0 && !read_port(*fd, address)) {
            err = errno;
            epw_fd_close(*fd);
        }
        epw_process_unlock();
    }
    if (gone) *gone = err == EADDRNOTAVAIL;
    if (err == 0) return EPW_OK;
    if (err == EADDRINUSE && first != 0) address->port = 0;
    epw_address_say(address, text);
    if (err == EADDRINUSE && first != 0)
        return epw_fail_errno(err, where,
                              "listening on %s: every port of the range %u..%u is taken; widen it", text,
                              (unsigned)first, (unsigned)last);
    return epw_fail_errno(err, where, "listening on %s", text);
}
