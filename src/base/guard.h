/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `if (CVY_GUARDED)` marks the work of fault tolerance while nothing fails. A library built with -DCOVEY_BARE=ON
 * leaves it out: no detection, no signatures in lines, no check for dead sources, no inputs saved for a repair.
 * (Epochs in tags and the word of contributors stay: they cost nothing.) Kernels check no gate and no deadline, count
 * no operations, store no outcome, save no inputs and cannot park. That library is for comparison
 * (tests/bench/healthy, tests/gpu/run --time), never for use.
 */
#ifndef CVY_GUARD_H
#define CVY_GUARD_H

#ifdef CVY_BARE
#define CVY_GUARDED 0
#else
#define CVY_GUARDED 1
#endif

#endif
