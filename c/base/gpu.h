/* What a GPU must provide: checked when a GPU is opened, and not exceeded by the kernels. In bytes of an SM's
 * shared memory. */
#ifndef EPW_BASE_GPU_H
#define EPW_BASE_GPU_H

#define EPW_GPU_SHARE     (114u * 1024) /* what a block takes that shares its SM */
#define EPW_GPU_SM_MEMORY (227u * 1024) /* what one takes that has an SM to itself: prefill's */

#endif
