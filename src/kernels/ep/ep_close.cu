/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch where the rows of experts stand close: kernels of their own, compiled beside those of other bins. A combine finds
 * rows by the route, wherever they stand.
 */
#include <cuda_runtime.h>

#include "ep_bulk_dispatch.cuh"
#include "ep_kernel.cuh"

const struct cvy_gpu_entry *cvy_ep_close_kernel(const struct cvy_ep_args *a)
{
	if (a->form.bulk)
		return cvy_ep_phase_of<cvy_ep_bulk_dispatch<CVY_EP_CLOSE>>(a);
	if (!cvy_ep_in_ints(a->code))
		return cvy_ep_phase_of<cvy_ep_dispatch<CVY_EP_CLOSE>>(a);
	return a->smooth ? cvy_ep_phase_of<cvy_ep_dispatch<CVY_EP_CLOSE, CVY_EP_SMOOTH>>(a)
			 : cvy_ep_phase_of<cvy_ep_dispatch<CVY_EP_CLOSE, CVY_EP_CAST>>(a);
}
