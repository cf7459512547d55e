/* Descriptors that travel in messages of local sockets. */
#ifndef EPW_IPC_FD_PASS_H
#define EPW_IPC_FD_PASS_H

#include <sys/socket.h>

/* Sends the bytes, with a descriptor unless that is -1, as one message; `flags` as of sendmsg, without which
 * it may block. As sendmsg returns. Never a SIGPIPE. */
ssize_t epw_fd_pass(int socket, const void *bytes, size_t length, int fd, int flags);

/* Takes the one descriptor of a message that was received, -1 if there is none; closes any others, since a
 * header's padding has room for more than was asked for. */
int epw_fd_taken(struct msghdr *message);

#endif
