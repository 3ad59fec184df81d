/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch where the rows of experts stand close: kernels of their own, compiled beside those of other bins. A combine finds
 * rows by the route, wherever they stand.
 */
#include <cuda_runtime.h>

#include "ep_bulk_dispatch.cuh"
#include "ep_lane.cuh"
#include "gpu_state.cuh"

template <typename BODY> static const void *phase_of(const struct cvy_ep_args *a)
{
	return a->phases == CVY_EP_SEND ? (const void *)cvy_ep_first_phase<BODY> : (const void *)cvy_ep_operation<BODY>;
}

const void *cvy_ep_close_kernel(const struct cvy_ep_args *a)
{
	if (a->form.bulk)
		return phase_of<cvy_ep_bulk_dispatch<CVY_EP_CLOSE>>(a);
	if (!cvy_ep_in_ints(a->code))
		return phase_of<cvy_ep_dispatch<CVY_EP_CLOSE>>(a);
	return a->smooth ? phase_of<cvy_ep_dispatch<CVY_EP_CLOSE, CVY_EP_SMOOTH>>(a)
			 : phase_of<cvy_ep_dispatch<CVY_EP_CLOSE, CVY_EP_CAST>>(a);
}
