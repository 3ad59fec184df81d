/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fault tolerance does while nothing fails, marked where it is done: `if (CVY_GUARDED)`. A library built with
 * -DCOVEY_BARE=ON leaves it out: no detection, no signatures in the lines, no look for sources that are gone,
 * and no inputs saved for a repair. (Epochs in tags and one word of contributors cost nothing to
 * leave out.) Kernels look at no gate and no deadline, count no operations, store no outcome, save no inputs and cannot
 * park. It is there to be measured against (tests/bench/healthy, tests/gpu/run --time), never to be used.
 */
#ifndef CVY_GUARD_H
#define CVY_GUARD_H

#ifdef CVY_BARE
#define CVY_GUARDED 0
#else
#define CVY_GUARDED 1
#endif

#endif
