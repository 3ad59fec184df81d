/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that peers map, the usual way: physical memory of its own (VMM), exported as file descriptors and mapped at
 * addresses that follow from rank and generation, so that a kernel looks nothing up. The driver is reached through the
 * runtime, so nothing here needs libcuda at link time.
 */
#include "gpu_state.cuh"

#include <fcntl.h>

static int find(struct cvy_gpu *gpu, const char *name, void **at)
{
	cudaDriverEntryPointQueryResult result;

	if (cudaGetDriverEntryPointByVersion(name, at, 12000, cudaEnableDefault, &result) == cudaSuccess && *at)
		return 0;
	return fail(gpu, COVEY_ERR_UNSUPPORTED, "the driver has no %s: version 12.0 or later is needed", name);
}

struct wanted {
	const char *name;
	void **at;
};

static int find_all(struct cvy_gpu *gpu, const struct wanted *wanted, size_t n)
{
	int err = 0;

	for (size_t i = 0; !err && i < n; i++)
		err = find(gpu, wanted[i].name, wanted[i].at);
	return err;
}

/* The runtime's own, which stays after a close as it does after any call of the runtime. */
int cvy_gpu_find_context(struct cvy_gpu *gpu)
{
	struct driver *d = &gpu->driver;
	const struct wanted wanted[] = {
		{ "cuGetErrorString", (void **)&d->text },
		{ "cuDevicePrimaryCtxRetain", (void **)&d->retain },
		{ "cuCtxPushCurrent", (void **)&d->push },
		{ "cuCtxPopCurrent", (void **)&d->pop },
	};
	int err = find_all(gpu, wanted, sizeof(wanted) / sizeof(wanted[0]));

	return err ? err : check_driver(gpu, d->retain(&gpu->context, gpu->device), "a context");
}

static int find_driver(struct cvy_gpu *gpu)
{
	struct driver *d = &gpu->driver;
	const struct wanted wanted[] = {
		{ "cuDeviceGetAttribute", (void **)&d->attribute },
		{ "cuMemAddressReserve", (void **)&d->reserve },
		{ "cuMemAddressFree", (void **)&d->unreserve },
		{ "cuMemCreate", (void **)&d->create },
		{ "cuMemRelease", (void **)&d->release },
		{ "cuMemMap", (void **)&d->map },
		{ "cuMemUnmap", (void **)&d->unmap },
		{ "cuMemSetAccess", (void **)&d->access },
		{ "cuMemExportToShareableHandle", (void **)&d->to_fd },
		{ "cuMemImportFromShareableHandle", (void **)&d->from_fd },
	};

	return find_all(gpu, wanted, sizeof(wanted) / sizeof(wanted[0]));
}

int cvy_gpu_has_vmm(struct cvy_gpu *gpu)
{
	int has = 0, exports = 0;

	if (find_driver(gpu))
		return 0;
	gpu->driver.attribute(&has, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, gpu->device);
	gpu->driver.attribute(&exports, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, gpu->device);
	if (!has || !exports)
		fail(gpu, COVEY_ERR_UNSUPPORTED, "device %d has no %s", gpu->device,
		     has ? "memory that is exported as a descriptor" : "virtual memory management (VMM)");
	return has && exports;
}

/* ---- chunks ---- */

static int map_at(struct cvy_gpu *gpu, CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, gpu->device }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	int err = check_driver(gpu, gpu->driver.map(at, bytes, 0, handle, 0), "mapping memory");

	if (err)
		return err;
	err = check_driver(gpu, gpu->driver.access(at, bytes, &access, 1), "access to mapped memory");
	if (err)
		gpu->driver.unmap(at, bytes);
	return err;
}

static int unmap_at(struct cvy_gpu *gpu, CUdeviceptr *mapped, size_t bytes)
{
	CUdeviceptr at = *mapped;

	if (!at || use(gpu))
		return 0;
	*mapped = 0;
	return check_driver(gpu, gpu->driver.unmap(at, bytes), "unmapping memory");
}

static int vmm_unchunk(struct cvy_gpu *gpu, int rank, int generation)
{
	size_t i = place(rank, generation);
	int err = unmap_at(gpu, &gpu->at[CVY_GPU_IN][i], CVY_GPU_CHUNK);

	if (gpu->in_handle[i])
		gpu->driver.release(gpu->in_handle[i]);
	gpu->in_handle[i] = 0;
	return err;
}

static int vmm_detach(struct cvy_gpu *gpu, int rank, int generation)
{
	size_t i = place(rank, generation);
	int err = unmap_at(gpu, &gpu->at[CVY_GPU_WINDOW][i], gpu->window_bytes);

	if (!err)
		err = unmap_at(gpu, &gpu->copied[i], CVY_GPU_CHUNK);
	return err ? err : unmap_at(gpu, &gpu->at[CVY_GPU_OUT][i], CVY_GPU_CHUNK);
}

/* Zeroed: no tag is 0. */
static int chunk_fill(struct cvy_gpu *gpu, CUdeviceptr at, CUmemGenericAllocationHandle handle)
{
	int err = map_at(gpu, at, CVY_GPU_CHUNK, handle);

	if (err)
		return err;
	err = cvy_gpu_clear(gpu, at, CVY_GPU_CHUNK, "clearing a chunk");
	if (err)
		gpu->driver.unmap(at, CVY_GPU_CHUNK);
	return err;
}

/* Memory of this device that others may map. */
static int create(struct cvy_gpu *gpu, size_t bytes, CUmemGenericAllocationHandle *handle, const char *what)
{
	CUmemAllocationProp prop = {};
	int err = use(gpu);

	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = gpu->device;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	return err ? err : check_driver(gpu, gpu->driver.create(handle, bytes, &prop, 0), what);
}

static int vmm_chunk(struct cvy_gpu *gpu, int rank, int generation)
{
	CUmemGenericAllocationHandle handle;
	size_t i = place(rank, generation);
	CUdeviceptr at = gpu->in + i * CVY_GPU_STRIDE;
	int err = vmm_unchunk(gpu, rank, generation);

	if (!err)
		err = create(gpu, CVY_GPU_CHUNK, &handle, "memory for a chunk");
	if (err)
		return err;
	gpu->in_handle[i] = handle;
	err = chunk_fill(gpu, at, handle);
	gpu->at[CVY_GPU_IN][i] = err ? 0 : at;
	return err;
}

/* A descriptor that programs started later are not given, whatever the driver makes of it. */
static int export_handle(struct cvy_gpu *gpu, CUmemGenericAllocationHandle handle, int *fd, const char *what)
{
	int err = check_driver(gpu, gpu->driver.to_fd(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), what);

	if (!err)
		fcntl(*fd, F_SETFD, FD_CLOEXEC);
	return err;
}

static int vmm_chunk_fd(struct cvy_gpu *gpu, int rank, int generation, int *fd)
{
	CUmemGenericAllocationHandle handle = gpu->in_handle[place(rank, generation)];
	int err = handle ? use(gpu) : fail(gpu, COVEY_ERR_INVAL, "no chunk of rank %d", rank);

	return err ? err : export_handle(gpu, handle, fd, "a descriptor of a chunk");
}

/* Maps what a peer exports. */
static int import_at(struct cvy_gpu *gpu, CUdeviceptr at, size_t bytes, int fd, CUdeviceptr *mapped)
{
	CUmemGenericAllocationHandle handle;
	int err = use(gpu);

	if (!err)
		err = check_driver(gpu,
				   gpu->driver.from_fd(&handle, (void *)(uintptr_t)fd,
						       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
				   "memory of a peer");
	if (err)
		return err;
	err = map_at(gpu, at, bytes, handle);
	gpu->driver.release(handle);
	*mapped = err ? 0 : at;
	return err;
}

static int vmm_attach(struct cvy_gpu *gpu, int rank, int generation, int fd)
{
	size_t i = place(rank, generation);
	int err = vmm_detach(gpu, rank, generation);

	return err ? err : import_at(gpu, gpu->out + i * CVY_GPU_STRIDE, CVY_GPU_CHUNK, fd, &gpu->at[CVY_GPU_OUT][i]);
}

/* Only what was put is ever copied from there, so it is not cleared. */
int cvy_gpu_stand_in(struct cvy_gpu *gpu, int rank, int generation, int fd)
{
	size_t i = place(rank, generation);
	CUdeviceptr at = gpu->out + i * CVY_GPU_STRIDE;
	CUmemGenericAllocationHandle handle;
	int err = vmm_detach(gpu, rank, generation);

	if (!err)
		err = import_at(gpu, gpu->beyond + i * CVY_GPU_STRIDE, CVY_GPU_CHUNK, fd, &gpu->copied[i]);
	if (!err)
		err = create(gpu, CVY_GPU_CHUNK, &handle, "memory for what is copied");
	if (err)
		return err;
	err = map_at(gpu, at, CVY_GPU_CHUNK, handle);
	gpu->driver.release(handle);
	gpu->at[CVY_GPU_OUT][i] = err ? 0 : at;
	return err;
}

/* ---- registered memory ---- */

static int vmm_attach_window(struct cvy_gpu *gpu, int rank, int generation, int fd)
{
	size_t i = place(rank, generation);

	return import_at(gpu, gpu->windows + i * gpu->window_stride, gpu->window_bytes, fd,
			 &gpu->at[CVY_GPU_WINDOW][i]);
}

static int vmm_window(struct cvy_gpu *gpu, size_t bytes, void **base, int *fd)
{
	const size_t all = cvy_gpu_whole_pages(bytes);
	CUmemGenericAllocationHandle handle;
	int err = create(gpu, all, &handle, "memory for a window");

	if (err)
		return err;
	err = check_driver(gpu, gpu->driver.reserve(&gpu->window, all, 0, 0, 0), "addresses for a window");
	if (!err)
		err = map_at(gpu, gpu->window, all, handle);
	if (!err)
		err = export_handle(gpu, handle, fd, "a descriptor of a window");
	if (!err)
		err = check_driver(gpu, gpu->driver.reserve(&gpu->windows, all * MAPPINGS, 0, 0, 0),
				   "addresses for windows");
	if (!err)
		err = check(gpu, cudaMemsetAsync((void *)gpu->window, 0, all, gpu->stream), "clearing a window");
	if (!err)
		err = check(gpu, cudaStreamSynchronize(gpu->stream), "clearing a window");
	gpu->driver.release(handle);
	*base = (void *)gpu->window;
	gpu->window_bytes = all;
	gpu->window_stride = all;
	return err;
}

static void free_windows(struct cvy_gpu *gpu)
{
	if (gpu->windows)
		gpu->driver.unreserve(gpu->windows, gpu->window_stride * MAPPINGS);
	if (!gpu->window)
		return;
	gpu->driver.unmap(gpu->window, gpu->window_bytes);
	gpu->driver.unreserve(gpu->window, gpu->window_bytes);
}

static int vmm_open(struct cvy_gpu *gpu, int peers)
{
	size_t bytes = CVY_GPU_ADDRESSES;
	int err = use(gpu);

	(void)peers;
	if (!err)
		err = check_driver(gpu, gpu->driver.reserve(&gpu->in, bytes, 0, 0, 0), "addresses for chunks");

	return err ? err : check_driver(gpu, gpu->driver.reserve(&gpu->out, bytes, 0, 0, 0), "addresses for chunks");
}

static void vmm_close(struct cvy_gpu *gpu)
{
	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		for (int g = 0; g < CVY_GPU_GENERATIONS; g++) {
			vmm_unchunk(gpu, r, g);
			vmm_detach(gpu, r, g);
		}
	}
	free_windows(gpu);
	if (gpu->beyond)
		gpu->driver.unreserve(gpu->beyond, CVY_GPU_ADDRESSES);
	if (gpu->in)
		gpu->driver.unreserve(gpu->in, CVY_GPU_ADDRESSES);
	if (gpu->out)
		gpu->driver.unreserve(gpu->out, CVY_GPU_ADDRESSES);
}

const struct cvy_gpu_memory cvy_gpu_vmm = {
	vmm_open,   vmm_close,	vmm_chunk,  vmm_chunk_fd,      vmm_unchunk,
	vmm_attach, vmm_detach, vmm_window, vmm_attach_window, NULL,
};
