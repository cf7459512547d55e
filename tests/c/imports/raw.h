/* A client of an fd server that writes the messages itself: like another process, or like no correct one. */
#ifndef EPW_TESTS_IMPORTS_RAW_H
#define EPW_TESTS_IMPORTS_RAW_H

#include "end.h"
#include "ipc/fd_client.h"
#include "ipc/fd_message.h"

#include <sys/socket.h>

/* A raw connection to the server of a blob. */
static inline int connect_raw(const end *e, epw_blob *blob) {
    CHECK(epw_blob_parse(e->blob, e->length, here, blob) == EPW_OK);
    struct sockaddr_un address;
    socklen_t length = epw_fd_address(&blob->server, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(!connect(fd, (struct sockaddr *)&address, length));
    return fd;
}

/* Sends a request as another process would, over a connection of its own. */
static inline uint32_t request_raw(int fd, const epw_blob *blob, unsigned char name) {
    epw_fd_request request = {.magic = EPW_FD_REQUEST_MAGIC, .rank = 1, .window = blob->window};
    request.process.bytes[0] = name;
    epw_fd_reply reply = {0};
    CHECK(send(fd, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    CHECK(recv(fd, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    return reply.verdict;
}

#endif
