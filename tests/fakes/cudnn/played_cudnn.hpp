// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// cuDNN of the host: descriptors, the engines that a test gives, and graphs of operations, which are computed one after
// the other, in double, each tensor rounded to its type.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "belay/core/dtype.hpp"
#include "fakes/cudnn/backend_types.hpp"

namespace fakes {

// An engine as cuDNN lists it for a graph.
struct cudnn_engine {
  std::int64_t index = 0, workspace = 0;
  bool deterministic = true, supported = true;
  std::int64_t stages = 1;  // the value of its one knob
};

// One description, with its attributes as bytes.
struct cudnn_object {
  cudnnBackendDescriptorType_t kind{};
  bool finalized = false;
  const cudnn_engine* engine = nullptr;  // of an engine, its settings, a plan
  const cudnn_object* graph = nullptr;   // of settings and a plan
  std::map<int, std::vector<std::byte>> attributes;

  template <class T>
  [[nodiscard]] std::vector<T> all(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    std::vector<T> out(found == attributes.end() ? 0 : found->second.size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), found->second.data(), out.size() * sizeof(T));
    return out;
  }
  template <class T>
  [[nodiscard]] T one(cudnnBackendAttributeName_t name, T otherwise = {}) const {
    const std::vector<T> out = all<T>(name);
    return out.empty() ? otherwise : out[0];
  }
  [[nodiscard]] const cudnn_object* to(cudnnBackendAttributeName_t name) const {
    return one<const cudnn_object*>(name);
  }
};

// One run of a graph, with the memory of its tensors.
class cudnn_run {
 public:
  cudnn_run(const cudnn_object& graph, std::map<std::int64_t, void*> places) : places_(std::move(places)) {
    for (const cudnn_object* const op : graph.all<const cudnn_object*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) run(*op);
  }
  // Whether all memory that the graph names was given.
  [[nodiscard]] bool complete() const noexcept { return complete_; }

 private:
  using index = std::array<std::int64_t, 4>;
  struct tensor {
    const cudnn_object* of;
    index sizes{}, strides{};
    std::vector<double> values;  // dense

    [[nodiscard]] std::size_t place(const index& at) const {
      std::int64_t out = 0;
      for (std::size_t i = 0; i < 4; ++i) out = out * sizes[i] + (sizes[i] == 1 ? 0 : at[i] * sizes[i] / whole[i]);
      return static_cast<std::size_t>(out);
    }
    index whole{1, 1, 1, 1};  // the sizes of what it is read along with: fewer heads are shared
  };
  template <class Visit>
  static void each(const index& sizes, const Visit& visit) {
    index at{};
    for (at[0] = 0; at[0] < sizes[0]; ++at[0])
      for (at[1] = 0; at[1] < sizes[1]; ++at[1])
        for (at[2] = 0; at[2] < sizes[2]; ++at[2])
          for (at[3] = 0; at[3] < sizes[3]; ++at[3]) visit(at);
  }
  static std::size_t offset(const index& at, const index& strides) {
    std::int64_t out = 0;
    for (std::size_t i = 0; i < 4; ++i) out += at[i] * strides[i];
    return static_cast<std::size_t>(out);
  }
  static cudnnDataType_t type(const cudnn_object& of) {
    return of.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT);
  }

  tensor shape(const cudnn_object& of) const {
    tensor out{&of, {}, {}, {}, {}};
    const auto sizes = of.all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    const auto strides = of.all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    for (std::size_t i = 0; i < 4; ++i) out.sizes[i] = sizes[i], out.strides[i] = strides[i];
    out.whole = out.sizes;
    std::size_t count = 1;
    for (const std::int64_t each : out.sizes) count *= static_cast<std::size_t>(each);
    out.values.resize(count);
    return out;
  }
  void* memory_of(const cudnn_object& of) {
    const auto found = places_.find(of.one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID));
    complete_ = complete_ && found != places_.end() && found->second != nullptr;
    return complete_ ? found->second : nullptr;
  }
  tensor read(const cudnn_object& of) {
    if (const auto found = inner_.find(&of); found != inner_.end()) return found->second;
    tensor out = shape(of);
    const void* const memory = memory_of(of);
    if (memory == nullptr) return out;
    each(out.sizes, [&](const index& at) {
      const std::size_t i = offset(at, out.strides);
      out.values[out.place(at)] = type(of) == CUDNN_DATA_BFLOAT16
                                      ? static_cast<double>(static_cast<const belay::bf16*>(memory)[i])
                                      : static_cast<double>(static_cast<const float*>(memory)[i]);
    });
    return out;
  }
  void write(tensor out) {
    const cudnn_object& of = *out.of;
    for (double& each : out.values)
      each = type(of) == CUDNN_DATA_BFLOAT16 ? static_cast<double>(belay::bf16(static_cast<float>(each)))
                                             : static_cast<double>(static_cast<float>(each));
    if (of.one<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL) == 0) {
      void* const memory = memory_of(of);
      if (memory == nullptr) return;
      each(out.sizes, [&](const index& at) {
        const float value = static_cast<float>(out.values[out.place(at)]);
        const std::size_t i = offset(at, out.strides);
        if (type(of) == CUDNN_DATA_BFLOAT16)
          static_cast<belay::bf16*>(memory)[i] = belay::bf16(value);
        else
          static_cast<float*>(memory)[i] = value;
      });
    }
    inner_.insert_or_assign(&of, std::move(out));
  }

  void run(const cudnn_object& op) {
    switch (op.kind) {
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: return multiply(op);
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return pointwise(op);
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: return reduce(op);
      default: return view(op);
    }
  }
  void multiply(const cudnn_object& op) {
    const tensor a = read(*op.to(CUDNN_ATTR_OPERATION_MATMUL_ADESC));
    tensor b = read(*op.to(CUDNN_ATTR_OPERATION_MATMUL_BDESC));
    tensor c = shape(*op.to(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
    b.whole[1] = a.sizes[1];
    each(c.sizes, [&](const index& at) {
      double sum = 0;
      for (std::int64_t k = 0; k < a.sizes[3]; ++k)
        sum += a.values[a.place({at[0], at[1], at[2], k})] * b.values[b.place({at[0], at[1], k, at[3]})];
      c.values[c.place(at)] = sum;
    });
    write(std::move(c));
  }
  void pointwise(const cudnn_object& op) {
    const cudnn_object& how = *op.to(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = how.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    const auto axis = static_cast<std::size_t>(how.one<std::int64_t>(CUDNN_ATTR_POINTWISE_AXIS));
    const auto other = [&](cudnnBackendAttributeName_t name) {
      const cudnn_object* const of = op.to(name);
      return of == nullptr ? tensor{nullptr, {1, 1, 1, 1}, {}, {0.0}, {1, 1, 1, 1}} : read(*of);
    };
    const tensor x = read(*op.to(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
    const tensor b = other(CUDNN_ATTR_OPERATION_POINTWISE_BDESC), t = other(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    tensor y = shape(*op.to(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    each(y.sizes, [&](const index& at) {
      const double left = x.values[x.place(at)], right = b.values[b.place(at)];
      double& to = y.values[y.place(at)];
      switch (mode) {
        case CUDNN_POINTWISE_ADD: to = left + right; break;
        case CUDNN_POINTWISE_MUL: to = left * right; break;
        case CUDNN_POINTWISE_DIV: to = left / right; break;
        case CUDNN_POINTWISE_SUB: to = left - right; break;
        case CUDNN_POINTWISE_EXP: to = std::exp(left); break;
        case CUDNN_POINTWISE_LOG: to = std::log(left); break;
        case CUDNN_POINTWISE_CMP_GE: to = left >= right ? 1 : 0; break;
        case CUDNN_POINTWISE_GEN_INDEX: to = static_cast<double>(at[axis]); break;
        case CUDNN_POINTWISE_BINARY_SELECT: to = t.values[t.place(at)] != 0 ? left : right; break;
      }
    });
    write(std::move(y));
  }
  void reduce(const cudnn_object& op) {
    const auto by =
        op.to(CUDNN_ATTR_OPERATION_REDUCTION_DESC)->one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
    const tensor x = read(*op.to(CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
    tensor y = shape(*op.to(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
    y.whole = x.sizes;
    y.values.assign(y.values.size(), by == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0);
    each(x.sizes, [&](const index& at) {
      double& to = y.values[y.place(at)];
      const double value = x.values[x.place(at)];
      to = by == CUDNN_REDUCE_TENSOR_MAX ? std::fmax(to, value) : to + value;
    });
    y.whole = y.sizes;
    write(std::move(y));
  }
  // Its elements, found by other strides.
  void view(const cudnn_object& op) {
    const tensor x = read(*op.to(CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
    tensor y = shape(*op.to(CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
    std::map<std::size_t, double> by_offset;
    each(x.sizes, [&](const index& at) { by_offset[offset(at, x.strides)] = x.values[x.place(at)]; });
    each(y.sizes, [&](const index& at) { y.values[y.place(at)] = by_offset.at(offset(at, y.strides)); });
    write(std::move(y));
  }

  std::map<std::int64_t, void*> places_;
  std::map<const cudnn_object*, tensor> inner_;
  bool complete_ = true;
};

// The library that the next handle is of.
class played_cudnn {
 public:
  std::size_t version = 91900;
  std::vector<cudnn_engine> engines{{}};
  bool opens = true;
  std::vector<std::int64_t> engines_executed;
  std::int64_t handles = 0, objects = 0;  // that there are

  [[nodiscard]] static played_cudnn& current() {
    thread_local played_cudnn one;
    return one;
  }
};

}  // namespace fakes
