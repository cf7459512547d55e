/* Turns an adapter's answers into messages: errors of commands, and warnings of what it does not give back.
 */
#include "nic/mlx5/parts.h"

#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The remedy; "" where none is known. */
static const char *advice(uint32_t opcode, int err, uint32_t status) {
    if (err == EPERM || err == EACCES)
        return ": this process may not use it; see /dev/infiniband, and in a container --device";
    if (err == ENOMEM) return ": raise the limit of locked memory (ulimit -l)";
    if (err == EREMOTEIO && (status == 0x08 || status == 0x0f))
        return ": it has no more of them; use fewer buffers or peers";
    if (err == EREMOTEIO && opcode == EPW_MLX5_INIT2RTR)
        return ": the port's MTU, GID or LID does not suit; see its state with ibv_devinfo -v";
    return err == EREMOTEIO ? ": its firmware may be too old for that; see its version with ibv_devinfo" : "";
}

epw_status epw_mlx5_judge(const epw_mlx5 *adapter, uint32_t opcode, int err, const unsigned char *out,
                          epw_where where) {
    uint32_t status = epw_mlx5_status(out);
    const char *command = epw_mlx5_command_name(opcode);
    if (err == 0 && status == 0) return EPW_OK;
    if (status != 0)
        return epw_fail(EPW_ERR_SYSTEM, where, "%s refuses %s: %s, syndrome 0x%x%s", adapter->name.text,
                        command, epw_mlx5_status_name(status), epw_mlx5_syndrome(out),
                        advice(opcode, EREMOTEIO, status));
    return epw_fail_errno(err, where, "%s has not taken %s%s", adapter->name.text, command,
                          advice(opcode, err, 0));
}

void epw_mlx5_tell_kept(const epw_mlx5 *adapter, int peer, int err, const char *what, ...) {
    char named[64];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(named, sizeof named, what, arguments);
    va_end(arguments);
    epw_log(EPW_LOG_NIC, EPW_LOG_WARN, (epw_where){"", adapter->rank, peer},
            "%s does not give back %s: %s (errno %d): see dmesg; the end of this process frees it",
            adapter->name.text, named, strerror(err), err);
}
