// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the CUDA backend takes for granted of a card, asked of it in ten seconds:
//   probe           attributes, what launches, polls and graphs cost, what a thread that captures may ask of events
//   probe portable  whether a kernel reaches registered memory by the host's address where it was registered as portable
//
//   probe mapped    that, where it was registered as portable and mapped, as the backend does
//
// Each in a process of its own: an illegal address ends a context. Stands on the runtime alone.
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "support/card.hpp"

namespace {

constexpr int small_kernels = 20000;

__global__ void add_one(float* x, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) x[i] += 1;
}

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool failed = false;

void expect(const char* what, cudaError_t got) {
  if (got == cudaSuccess) return;
  std::printf("  %s: %s\n", what, cudaGetErrorName(got));
  failed = true;
}

void* pages(std::size_t bytes) {
  void* const got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return got == MAP_FAILED ? nullptr : got;
}

// Whether a kernel adds to memory that was registered so, by the host's address.
int reaches(unsigned flags, const char* name) {
  constexpr std::size_t bytes = std::size_t{1} << 20;
  auto* const p = static_cast<float*>(pages(bytes));
  if (p == nullptr) return 1;
  p[0] = 41;
  const cudaError_t got = cudaHostRegister(p, bytes, flags);
  void* there = nullptr;
  const cudaError_t asked = got == cudaSuccess ? cudaHostGetDevicePointer(&there, p, 0) : got;
  add_one<<<1, 32>>>(p, 32);
  const cudaError_t ran = cudaDeviceSynchronize();
  const char* const address = asked != cudaSuccess ? cudaGetErrorName(asked) : there == p ? "the host's" : "another";
  const bool right = ran == cudaSuccess && p[0] == 42;
  std::printf("registered %s: register %s, its address for kernels %s, a kernel by the host's address %s: %s\n", name,
              cudaGetErrorName(got), address, cudaGetErrorName(ran), right ? "reached" : "not reached");
  return right ? 0 : 1;
}

void attributes() {
  int driver = 0, runtime = 0;
  expect("cudaDriverGetVersion", cudaDriverGetVersion(&driver));
  expect("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&runtime));
  std::printf("driver %d, runtime %d\n", driver, runtime);
  const struct {
    const char* name;
    cudaDeviceAttr which;
  } all[] = {{"canUseHostPointerForRegisteredMem", cudaDevAttrCanUseHostPointerForRegisteredMem},
             {"hostRegisterSupported", cudaDevAttrHostRegisterSupported},
             {"unifiedAddressing", cudaDevAttrUnifiedAddressing},
             {"concurrentManagedAccess", cudaDevAttrConcurrentManagedAccess},
             {"asyncEngineCount", cudaDevAttrAsyncEngineCount},
             {"multiProcessorCount", cudaDevAttrMultiProcessorCount},
             {"maxSharedMemoryPerBlockOptin", cudaDevAttrMaxSharedMemoryPerBlockOptin},
             {"l2CacheSize", cudaDevAttrL2CacheSize}};
  for (const auto& one : all) {
    int value = 0;
    expect(one.name, cudaDeviceGetAttribute(&value, one.which, 0));
    std::printf("%s %d\n", one.name, value);
  }
}

// Launches queued in a row, and one at a time with a wait that polls an event.
void launches(cudaStream_t stream, cudaEvent_t event, float* memory) {
  for (const bool counted : {false, true}) {
    const double began = now_us();
    for (int i = 0; i < small_kernels; ++i) add_one<<<4, 256, 0, stream>>>(memory, 1024);
    const double queued = now_us();
    expect("cudaStreamSynchronize", cudaStreamSynchronize(stream));
    if (counted)
      std::printf("%d launches of 4 blocks: %.2f us to queue, %.2f us each until all ran\n", small_kernels,
                  (queued - began) / small_kernels, (now_us() - began) / small_kernels);
  }
  constexpr int times = 1000;
  const double began = now_us();
  for (int i = 0; i < times; ++i) {
    add_one<<<4, 256, 0, stream>>>(memory, 1024);
    expect("cudaEventRecord", cudaEventRecord(event, stream));
    while (cudaEventQuery(event) == cudaErrorNotReady) {
    }
  }
  static_cast<void>(cudaGetLastError());
  std::printf("launch, record, poll until reached: %.2f us\n", (now_us() - began) / times);
}

// What a thread that captures may ask of an event from before, and what a capture leaves of an event of its own.
void queries_of_captures(cudaStream_t stream, cudaEvent_t before, cudaEvent_t within, float* memory) {
  expect("cudaStreamBeginCapture", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  std::printf("in a capture: query of an event from before: %s\n", cudaGetErrorName(cudaEventQuery(before)));
  static_cast<void>(cudaEventRecord(within, stream));
  add_one<<<1, 32, 0, stream>>>(memory, 32);
  cudaGraph_t graph = nullptr;
  std::printf("the capture after that: %s\n", cudaGetErrorName(cudaStreamEndCapture(stream, &graph)));
  std::printf("query of an event that was recorded in a capture: %s\n", cudaGetErrorName(cudaEventQuery(within)));
  static_cast<void>(cudaGetLastError());
  if (graph != nullptr) expect("cudaGraphDestroy", cudaGraphDestroy(graph));
}

// A graph of many small kernels.
void graph_of_many(cudaStream_t stream, float* memory) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  expect("cudaStreamBeginCapture", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < small_kernels; ++i) add_one<<<4, 256, 0, stream>>>(memory, 1024);
  expect("cudaStreamEndCapture", cudaStreamEndCapture(stream, &graph));
  if (failed) return;
  const double began = now_us();
  expect("cudaGraphInstantiate", cudaGraphInstantiate(&made, graph, 0));
  const double ready = now_us();
  double ran = ready;
  for (int i = 0; i < 2; ++i) {
    ran = now_us();
    expect("cudaGraphLaunch", cudaGraphLaunch(made, stream));
    expect("cudaStreamSynchronize", cudaStreamSynchronize(stream));
  }
  std::printf("a graph of %d such kernels: instantiated in %.1f ms, launched in %.1f ms, %.2f us a kernel\n",
              small_kernels, (ready - began) / 1e3, (now_us() - ran) / 1e3, (now_us() - ran) / small_kernels);
}

void registering() {
  constexpr std::size_t gib = std::size_t{1} << 30;
  void* const p = pages(gib);
  if (p == nullptr) return;
  const double began = now_us();
  expect("cudaHostRegister", cudaHostRegister(p, gib, cudaHostRegisterPortable | cudaHostRegisterMapped));
  std::printf("registering a GiB: %.0f ms\n", (now_us() - began) / 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    std::printf("no device: %s\n", cudaGetErrorName(found));
    return test::code_without_card();
  }
  if (argc > 1 && std::strcmp(argv[1], "portable") == 0) return reaches(cudaHostRegisterPortable, "portable");
  if (argc > 1 && std::strcmp(argv[1], "mapped") == 0)
    return reaches(cudaHostRegisterPortable | cudaHostRegisterMapped, "portable and mapped");
  attributes();
  cudaStream_t stream = nullptr;
  cudaEvent_t before = nullptr, within = nullptr;
  float* memory = nullptr;
  expect("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  expect("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&before, cudaEventDisableTiming));
  expect("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&within, cudaEventDisableTiming));
  expect("cudaMalloc", cudaMalloc(&memory, std::size_t{1} << 20));
  if (failed) return 1;
  launches(stream, before, memory);
  queries_of_captures(stream, before, within, memory);
  graph_of_many(stream, memory);
  registering();
  return failed ? 1 : 0;
}
