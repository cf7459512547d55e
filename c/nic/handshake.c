/* See handshake.h. */
#include "nic/handshake.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* How long the kernel waits for a peer whose host has vanished. Deadlines of operations notice that much
 * sooner; this frees what is left of the connection. A network outage shorter than this costs only its own
 * duration. */
#define SILENCE_MS 600000

static bool is_local(int fd) {
    int domain = 0;
    socklen_t length = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX;
}

/* Frames are complete when they are written, so delaying them gains nothing. */
static int set_options(int fd) {
    int on = 1, probe_s = SILENCE_MS / 1000 / 10, silence = SILENCE_MS;
    bool set = setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0 &&
               setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) == 0 &&
               setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &probe_s, sizeof probe_s) == 0 &&
               setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &probe_s, sizeof probe_s) == 0 &&
               setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof silence) == 0;
    return set ? 0 : errno;
}

/* Unread bytes that a connection within this host may hold: about as many as fit the cache of the reader's
 * core. The system's own choice grows to megabytes, which all go through memory. Between hosts it depends on
 * the network, and is left to the system. */
enum { HELD_BYTES = 256 << 10 };

static bool address_of(int fd, int (*get)(int, struct sockaddr *, socklen_t *), epw_address *out) {
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    return get(fd, (struct sockaddr *)&name, &length) == 0 &&
           epw_address_from_socket((struct sockaddr *)&name, out);
}

/* Connected. Both ends of a connection within a host have one address. */
static void bound_held_bytes(int fd) {
    epw_address here, there;
    int bytes = HELD_BYTES;
    if (address_of(fd, getsockname, &here) && address_of(fd, getpeername, &there) &&
        epw_address_same_host(&here, &there))
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes); /* else it is slower */
}

/* Lock held. */
static int adopt(epw_handshake *h, int fd) {
    if (!epw_fd_keep_from_child(fd)) {
        close(fd);
        return ENOMEM;
    }
    int err = is_local(fd) ? 0 : set_options(fd);
    if (err) {
        epw_fd_close(fd);
        return err;
    }
    h->fd = fd;
    return 0;
}

/* For an abstract socket, since any user of the host can bind and dial one. */
static bool is_of_other_user(int fd) {
    struct ucred other;
    socklen_t length = sizeof other;
    return is_local(fd) &&
           (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &length) != 0 || other.uid != geteuid());
}

int epw_handshake_dial(epw_handshake *h, const epw_address *address, const epw_auth_self *self,
                       const epw_auth_peer *peer) {
    struct sockaddr_storage name;
    socklen_t length = epw_address_to_socket(address, &name);
    *h = (epw_handshake){.fd = -1, .connecting = true};
    epw_auth_dial(&h->auth, self, peer);
    epw_process_lock();
    int fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int err = fd < 0 ? errno : adopt(h, fd);
    epw_process_unlock();
    if (err) epw_handshake_close(h);
    if (err) return err;
    if (connect(h->fd, (struct sockaddr *)&name, length) == 0 || errno == EINPROGRESS || errno == EINTR)
        return 0;
    err = errno;
    epw_handshake_close(h);
    return err;
}

int epw_handshake_accept(epw_handshake *h, int listener, const epw_auth_self *self) {
    *h = (epw_handshake){.fd = -1};
    epw_auth_listen(&h->auth, self);
    epw_process_lock();
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int err = fd < 0 ? errno : adopt(h, fd);
    epw_process_unlock();
    if (err == 0 && is_of_other_user(h->fd)) err = EPERM;
    if (err) epw_handshake_close(h);
    if (err == 0) bound_held_bytes(h->fd);
    return err == EWOULDBLOCK ? EAGAIN : err;
}

bool epw_handshake_connected(epw_handshake *h) {
    struct pollfd p = {.fd = h->fd, .events = POLLOUT};
    if (!h->connecting) return true;
    if (poll(&p, 1, 0) != 1) return false;
    socklen_t length = sizeof h->error;
    if (getsockopt(h->fd, SOL_SOCKET, SO_ERROR, &h->error, &length)) h->error = errno;
    if (h->error == 0 && is_of_other_user(h->fd)) h->error = EPERM;
    h->connecting = h->error != 0;
    if (h->error == 0) bound_held_bytes(h->fd);
    return h->error == 0;
}

/* Sends what must be sent. If that fails there may still be something to read, for example the reason. */
static void send_output(epw_handshake *h) {
    const unsigned char *bytes;
    for (size_t length; (length = epw_auth_output(&h->auth, &bytes)) > 0;) {
        ssize_t sent = send(h->fd, bytes, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (sent < 0) h->error = errno;
        epw_auth_sent(&h->auth, sent < 0 ? length : (size_t)sent);
    }
}

/* False if nothing has arrived. */
static bool receive(epw_handshake *h) {
    unsigned char bytes[EPW_AUTH_HELLO_BYTES];
    ssize_t got = recv(h->fd, bytes, epw_auth_wanted(&h->auth), 0);
    if (got < 0 && errno == EINTR) return true;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (got > 0) {
        epw_auth_take(&h->auth, bytes, (size_t)got);
    } else {
        epw_auth_end(&h->auth); /* a reset is an end as well */
    }
    return true;
}

epw_auth_state epw_handshake_step(epw_handshake *h) {
    do send_output(h);
    while (epw_auth_wanted(&h->auth) > 0 && receive(h));
    send_output(h);
    const unsigned char *ignored;
    epw_auth_state state = h->auth.state;
    if (state != EPW_AUTH_DONE) return state;
    if (h->error) return EPW_AUTH_REFUSED;
    return epw_auth_output(&h->auth, &ignored) > 0 ? EPW_AUTH_MORE : EPW_AUTH_DONE;
}

uint32_t epw_handshake_events(const epw_handshake *h) {
    const unsigned char *ignored;
    if (h->connecting) return EPOLLOUT;
    return (epw_auth_wanted(&h->auth) > 0 ? EPOLLIN : 0u) |
           (epw_auth_output(&h->auth, &ignored) > 0 ? EPOLLOUT : 0u);
}

const char *epw_handshake_explain(const epw_handshake *h, char text[EPW_HANDSHAKE_TEXT]) {
    if (h->auth.state == EPW_AUTH_REFUSED) return epw_auth_explain(&h->auth, text, EPW_HANDSHAKE_TEXT);
    if (h->error) {
        snprintf(text, EPW_HANDSHAKE_TEXT, "%s (errno %d)", strerror(h->error), h->error);
    } else {
        snprintf(text, EPW_HANDSHAKE_TEXT, "%s",
                 h->connecting ? "no answer" : "accepted, but said nothing more");
    }
    return text;
}

void epw_handshake_close(epw_handshake *h) {
    if (h->fd >= 0) epw_fd_release(h->fd);
    h->fd = -1;
    explicit_bzero(h->auth.self.key, sizeof h->auth.self.key);
}
