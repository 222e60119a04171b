// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Stands in the place of NVIDIA's header of that name: the calls that an attention needs, over `fakes::played_cudnn`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "fakes/cudnn/backend_types.hpp"
#include "fakes/cudnn/played_cudnn.hpp"

inline std::size_t cudnnGetVersion() { return fakes::played_cudnn::current().version; }
inline const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_INITIALIZED ? "CUDNN_STATUS_NOT_INITIALIZED"
         : status == CUDNN_STATUS_BAD_PARAM     ? "CUDNN_STATUS_BAD_PARAM"
                                                : "CUDNN_STATUS_NOT_SUPPORTED";
}
inline cudnnStatus_t cudnnCreate(cudnnHandle_t* made) {
  fakes::played_cudnn& of = fakes::played_cudnn::current();
  if (!of.opens) return CUDNN_STATUS_NOT_INITIALIZED;
  ++of.handles;
  *made = &of;
  return CUDNN_STATUS_SUCCESS;
}
inline cudnnStatus_t cudnnDestroy(cudnnHandle_t which) {
  --which->handles;
  return CUDNN_STATUS_SUCCESS;
}
inline cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t) { return CUDNN_STATUS_SUCCESS; }

inline cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind, cudnnBackendDescriptor_t* made) {
  ++fakes::played_cudnn::current().objects;
  *made = new fakes::cudnn_object{kind, false, nullptr, nullptr, {}};
  return CUDNN_STATUS_SUCCESS;
}
inline cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t which) {
  --fakes::played_cudnn::current().objects;
  delete static_cast<fakes::cudnn_object*>(which);
  return CUDNN_STATUS_SUCCESS;
}
inline std::size_t size_of_attribute(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN: return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return 4;
  }
}
inline cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t which, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, std::int64_t count,
                                              const void* values) {
  auto& of = *static_cast<fakes::cudnn_object*>(which);
  if (of.finalized || count <= 0 || values == nullptr) return CUDNN_STATUS_BAD_PARAM;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    for (std::int64_t i = 0; i < count; ++i)
      if (!(*(static_cast<fakes::cudnn_object* const*>(values) + i))->finalized) return CUDNN_STATUS_BAD_PARAM;
  const auto* const first = static_cast<const std::byte*>(values);
  of.attributes[name] = {first, first + static_cast<std::size_t>(count) * size_of_attribute(type)};
  return CUDNN_STATUS_SUCCESS;
}
inline cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t which) {
  auto& of = *static_cast<fakes::cudnn_object*>(which);
  if (of.finalized) return CUDNN_STATUS_BAD_PARAM;
  if (of.kind == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR && fakes::played_cudnn::current().engines.empty())
    return CUDNN_STATUS_NOT_SUPPORTED;
  if (of.kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const fakes::cudnn_object& settings = *of.to(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    of.engine = settings.engine, of.graph = settings.graph;
    if (!of.engine->supported) return CUDNN_STATUS_NOT_SUPPORTED;
  }
  of.finalized = true;
  return CUDNN_STATUS_SUCCESS;
}
inline cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t which, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t, std::int64_t most, std::int64_t* count,
                                              void* values) {
  const auto& of = *static_cast<const fakes::cudnn_object*>(which);
  *count = 1;
  if (most < 1) return CUDNN_STATUS_BAD_PARAM;
  const auto first = [&] { return *static_cast<fakes::cudnn_object**>(values); };
  const auto give = [&](const auto& value) { std::memcpy(values, &value, sizeof value); };
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      const auto& engines = fakes::played_cudnn::current().engines;
      *count = static_cast<std::int64_t>(engines.size());
      for (std::int64_t i = 0; i < *count && i < most; ++i) {
        fakes::cudnn_object& settings = **(static_cast<fakes::cudnn_object**>(values) + i);
        settings.engine = &engines[static_cast<std::size_t>(i)], settings.finalized = true;
        settings.graph = of.to(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
      }
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE:
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES: first()->engine = of.engine; return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: give(of.engine->index); return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      give(of.engine->deterministic ? CUDNN_NUMERICAL_NOTE_TENSOR_CORE : CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE: give(CUDNN_KNOB_TYPE_STAGES); return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE: give(of.engine->stages); return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: give(of.engine->workspace); return CUDNN_STATUS_SUCCESS;
    default: return CUDNN_STATUS_BAD_PARAM;
  }
}
inline cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                         cudnnBackendDescriptor_t pack) {
  const auto& how = *static_cast<const fakes::cudnn_object*>(plan);
  const auto& with = *static_cast<const fakes::cudnn_object*>(pack);
  if (!how.finalized || !with.finalized) return CUDNN_STATUS_BAD_PARAM;
  const auto numbers = with.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = with.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<std::int64_t, void*> places;
  for (std::size_t i = 0; i < numbers.size(); ++i) places[numbers[i]] = pointers[i];
  handle->engines_executed.push_back(how.engine->index);
  return fakes::cudnn_run(*how.graph, places).complete() ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
