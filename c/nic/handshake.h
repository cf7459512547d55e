/* A connection, by TCP or within the host, that is to become a link: the socket, and its handshake (auth.h).
 * It never blocks, and reads nothing after the handshake. Children do not inherit sockets: an end that a
 * child kept open would hide the parent's death from the peer (ipc/process.h). */
#ifndef EPW_NIC_HANDSHAKE_H
#define EPW_NIC_HANDSHAKE_H

#include "nic/address.h"
#include "nic/auth.h"

typedef struct epw_handshake {
    int fd; /* -1: closed, or handed over */
    bool connecting;
    int error; /* the errno value with which the connection failed; 0: none */
    epw_auth auth;
} epw_handshake;

enum { EPW_HANDSHAKE_TEXT = 200 };

/* Starts to connect to `address` as the dialer of a link. Returns 0, or an errno value; then it is as after
 * epw_handshake_close. */
int epw_handshake_dial(epw_handshake *h, const epw_address *address, const epw_auth_self *self,
                       const epw_auth_peer *peer);

/* Takes the next connection of a listening socket. Returns 0 or an errno value, EAGAIN if there is none; then
 * it is as after epw_handshake_close. */
int epw_handshake_accept(epw_handshake *h, int listener, const epw_auth_self *self);

/* Whether a connection that was being made is established; sets `error` if it has failed. */
bool epw_handshake_connected(epw_handshake *h);

/* Continues the handshake as far as possible now. EPW_AUTH_DONE once it is agreed and nothing is left to
 * send; EPW_AUTH_REFUSED also for a failed connection. */
epw_auth_state epw_handshake_step(epw_handshake *h);

/* Which of EPOLLIN and EPOLLOUT it waits for. */
uint32_t epw_handshake_events(const epw_handshake *h);

/* Why it has failed. Returns `text`. */
const char *epw_handshake_explain(const epw_handshake *h, char text[EPW_HANDSHAKE_TEXT]);

/* Closes what is open, and wipes the key. */
void epw_handshake_close(epw_handshake *h);

#endif
