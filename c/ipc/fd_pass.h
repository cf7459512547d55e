/* Passing descriptors in messages of local sockets. */
#ifndef EPW_IPC_FD_PASS_H
#define EPW_IPC_FD_PASS_H

#include <sys/socket.h>

/* Sends the bytes as one message, with a descriptor unless `fd` is -1; `flags` are those of sendmsg, by
 * default it may block. Returns what sendmsg returns. Never raises SIGPIPE. */
ssize_t epw_fd_pass(int socket, const void *bytes, size_t length, int fd, int flags);

/* Takes the descriptor of a received message, -1 if there is none; closes further ones, since a header's
 * padding leaves room for more than was asked for. */
int epw_fd_taken(struct msghdr *message);

#endif
