/* The shared memory, in bytes, that a GPU must provide to a block: checked when a GPU is opened, and not
 * exceeded by the kernels. */
#ifndef EPW_BASE_GPU_H
#define EPW_BASE_GPU_H

#define EPW_GPU_SHARE     (114u * 1024) /* for a block that shares its SM */
#define EPW_GPU_SM_MEMORY (227u * 1024) /* for a block that has an SM to itself, as in prefill */

#endif
