/* See address.h. */
#include "nic/address.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "ipc/fd_message.h"

static size_t host_bytes(uint8_t family) {
    return family == 4 ? 4 : 16;
}

/* ---- bytes ---- */

size_t epw_addresses_write(const epw_addresses *addresses, unsigned char bytes[EPW_ADDRESSES_BYTES]) {
    unsigned char *at = bytes;
    for (uint32_t i = 0; i < addresses->count; i++) {
        const epw_address *a = &addresses->list[i];
        *at++ = a->family;
        memcpy(at, a->bytes, host_bytes(a->family));
        at += host_bytes(a->family);
        *at++ = (unsigned char)a->port;
        *at++ = (unsigned char)(a->port >> 8);
    }
    return (size_t)(at - bytes);
}

epw_status epw_addresses_parse(const void *bytes, size_t length, epw_where where, epw_addresses *out) {
    const unsigned char *at = bytes;
    *out = (epw_addresses){0};
    while (length > 0) {
        uint8_t family = at[0];
        if (out->count == EPW_ADDRESSES_MAX)
            return epw_fail(EPW_ERR_LIMIT, where, "the peer has more than %d addresses", EPW_ADDRESSES_MAX);
        if (family != 4 && family != 6)
            return epw_fail(EPW_ERR_INVALID, where, "address %u of the peer is of family %u, neither 4 nor 6",
                            (unsigned)out->count, (unsigned)family);
        size_t size = 1 + host_bytes(family) + 2;
        if (length < size)
            return epw_fail(EPW_ERR_INVALID, where, "address %u of the peer is cut: %zu bytes of %zu",
                            (unsigned)out->count, length, size);
        epw_address *a = &out->list[out->count];
        a->family = family;
        memcpy(a->bytes, at + 1, host_bytes(family));
        a->port = (uint16_t)(at[size - 2] | at[size - 1] << 8);
        if (a->port == 0)
            return epw_fail(EPW_ERR_INVALID, where, "address %u of the peer has no port",
                            (unsigned)out->count);
        out->count++;
        at += size;
        length -= size;
    }
    return out->count > 0 ? EPW_OK : epw_fail(EPW_ERR_INVALID, where, "the peer has no address");
}

/* ---- what an address is ---- */

epw_address epw_address_local(const epw_nonce *fabric) {
    epw_address address = {.family = EPW_ADDRESS_LOCAL};
    memcpy(address.bytes, fabric->bytes, sizeof fabric->bytes);
    return address;
}

bool epw_address_is_link_local(const epw_address *address) {
    const unsigned char *b = address->bytes;
    return address->family == 4 ? b[0] == 169 && b[1] == 254 : b[0] == 0xfe && (b[1] & 0xc0) == 0x80;
}

static bool is_wildcard(const epw_address *address) {
    static const unsigned char zeros[16];
    return memcmp(address->bytes, zeros, sizeof zeros) == 0;
}

static bool is_multicast(const epw_address *address) {
    return address->family == 4 ? address->bytes[0] >= 224 : address->bytes[0] == 0xff;
}

bool epw_address_same_host(const epw_address *a, const epw_address *b) {
    return a->family == b->family && memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

bool epw_addresses_add(epw_addresses *list, const epw_address *address) {
    for (uint32_t i = 0; i < list->count; i++)
        if (epw_address_same_host(&list->list[i], address)) return true;
    if (list->count == EPW_ADDRESSES_MAX) return false;
    list->list[list->count++] = *address;
    return true;
}

epw_status epw_address_read(const char *text, epw_where where, epw_address *out) {
    *out = (epw_address){.family = 4};
    if (inet_pton(AF_INET, text, out->bytes) != 1) {
        *out = (epw_address){.family = 6};
        if (inet_pton(AF_INET6, text, out->bytes) != 1)
            return epw_fail(
                EPW_ERR_INVALID, where,
                "\"%s\" is not a numeric address, such as 10.0.0.1 or fd00::1, without port and zone", text);
    }
    if (is_wildcard(out))
        return epw_fail(EPW_ERR_INVALID, where,
                        "%s is not an address that others can dial; name no address to listen on all", text);
    if (is_multicast(out)) return epw_fail(EPW_ERR_INVALID, where, "%s is not the address of one host", text);
    if (epw_address_is_link_local(out))
        return epw_fail(EPW_ERR_INVALID, where,
                        "%s is link-local, others cannot dial it; name another address", text);
    return EPW_OK;
}

/* ---- sockets and text ---- */

socklen_t epw_address_to_socket(const epw_address *address, struct sockaddr_storage *out) {
    memset(out, 0, sizeof *out);
    if (address->family == EPW_ADDRESS_LOCAL) {
        epw_nonce fabric;
        struct sockaddr_un un;
        memcpy(fabric.bytes, address->bytes, sizeof fabric.bytes);
        socklen_t length = epw_fd_address(&fabric, &un);
        memcpy(out, &un, sizeof un);
        return length;
    }
    if (address->family == 4) {
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(address->port)};
        memcpy(&in.sin_addr, address->bytes, sizeof in.sin_addr);
        memcpy(out, &in, sizeof in);
        return sizeof in;
    }
    struct sockaddr_in6 in = {.sin6_family = AF_INET6, .sin6_port = htons(address->port)};
    memcpy(&in.sin6_addr, address->bytes, sizeof in.sin6_addr);
    memcpy(out, &in, sizeof in);
    return sizeof in;
}

bool epw_address_from_socket(const struct sockaddr *from, epw_address *out) {
    *out = (epw_address){0};
    if (from->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, from, sizeof in);
        out->family = 4;
        memcpy(out->bytes, &in.sin_addr, sizeof in.sin_addr);
        out->port = ntohs(in.sin_port);
    } else if (from->sa_family == AF_INET6) {
        struct sockaddr_in6 in;
        memcpy(&in, from, sizeof in);
        out->family = 6;
        memcpy(out->bytes, &in.sin6_addr, sizeof in.sin6_addr);
        out->port = ntohs(in.sin6_port);
    }
    return out->family != 0;
}

const char *epw_address_say(const epw_address *address, char text[EPW_ADDRESS_TEXT]) {
    char host[INET6_ADDRSTRLEN] = "?";
    if (address->family == EPW_ADDRESS_LOCAL) {
        snprintf(text, EPW_ADDRESS_TEXT, "this host");
        return text;
    }
    inet_ntop(address->family == 4 ? AF_INET : AF_INET6, address->bytes, host, sizeof host);
    if (address->port == 0) {
        snprintf(text, EPW_ADDRESS_TEXT, "%s", host);
    } else {
        snprintf(text, EPW_ADDRESS_TEXT, address->family == 4 ? "%s:%u" : "[%s]:%u", host,
                 (unsigned)address->port);
    }
    return text;
}
