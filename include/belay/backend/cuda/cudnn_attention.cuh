// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Attention by cuDNN 9, through its backend interface: a graph of operations, which cuDNN's engines know as an
// attention. Needs cudnn_backend.h and libcudnn.so.9, and no front end; the target belay::cudnn brings both.
//
//   belay::cuda::attends_by<belay::cuda::cudnn_attention, belay::cuda::runtime_api> api({sizes, rows});
#pragma once

#include <cudnn_backend.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda/library_attention.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/operand.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// The first call of cuDNN that has failed, of several in a row.
class cudnn_outcome {
 public:
  /// Whether nothing has failed, this call of that name included.
  bool note(const char* call, cudnnStatus_t got) noexcept {
    if (failed_ == CUDNN_STATUS_SUCCESS && got != CUDNN_STATUS_SUCCESS) call_ = call, failed_ = got;
    return failed_ == CUDNN_STATUS_SUCCESS;
  }
  [[nodiscard]] bool succeeded() const noexcept { return failed_ == CUDNN_STATUS_SUCCESS; }
  /// "cudnnBackendFinalize: CUDNN_STATUS_BAD_PARAM", or nothing.
  [[nodiscard]] std::string text() const {
    return succeeded() ? std::string() : std::string(call_) + ": " + cudnnGetErrorString(failed_);
  }

 private:
  const char* call_ = "";
  cudnnStatus_t failed_ = CUDNN_STATUS_SUCCESS;
};

/// A descriptor of the backend interface.
class cudnn_descriptor {
 public:
  /// Makes one; whatever fails of it, `out` takes.
  cudnn_descriptor(cudnnBackendDescriptorType_t kind, cudnn_outcome& out) {
    cudnnBackendDescriptor_t made = nullptr;
    if (out.note("cudnnBackendCreateDescriptor", cudnnBackendCreateDescriptor(kind, &made))) descriptor_.reset(made);
  }

  /// As cuDNN is given it.
  [[nodiscard]] cudnnBackendDescriptor_t get() const noexcept { return descriptor_.get(); }
  /// Sets an attribute to some values, or to one.
  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::span<const T> values,
           cudnn_outcome& out) const {
    if (out.succeeded())
      out.note("cudnnBackendSetAttribute",
               cudnnBackendSetAttribute(get(), name, type, static_cast<std::int64_t>(values.size()), values.data()));
  }
  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value,
           cudnn_outcome& out) const {
    set(name, type, std::span<const T>(&value, 1), out);
  }
  void set(cudnnBackendAttributeName_t name, const cudnn_descriptor& value, cudnn_outcome& out) const {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.get(), out);
  }
  /// Ends what is said of it. Whether nothing has failed.
  bool finalize(cudnn_outcome& out) const {
    return out.succeeded() && out.note("cudnnBackendFinalize", cudnnBackendFinalize(get()));
  }
  /// Values of an attribute, as many as there are and have room; how many those are.
  template <class T>
  std::size_t read(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::span<T> values,
                   cudnn_outcome& out) const {
    std::int64_t count = 0;
    if (out.succeeded())
      out.note("cudnnBackendGetAttribute",
               cudnnBackendGetAttribute(get(), name, type, static_cast<std::int64_t>(values.size()), &count,
                                        values.empty() ? nullptr : values.data()));
    return out.succeeded() ? static_cast<std::size_t>(count) : 0;
  }
  /// Descriptors that an attribute has, of that kind, `most` of them.
  [[nodiscard]] std::vector<cudnn_descriptor> get_all(cudnnBackendAttributeName_t name,
                                                      cudnnBackendDescriptorType_t kind, std::size_t most,
                                                      cudnn_outcome& out) const {
    std::vector<cudnn_descriptor> all;
    std::vector<cudnnBackendDescriptor_t> pointers;
    for (std::size_t i = 0; i < most; ++i) pointers.push_back(all.emplace_back(kind, out).get());
    const std::size_t count =
        read(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::span<cudnnBackendDescriptor_t>(pointers), out);
    while (all.size() > count) all.pop_back();
    return all;
  }

 private:
  struct ended {
    void operator()(cudnnBackendDescriptor_t which) const noexcept {
      static_cast<void>(cudnnBackendDestroyDescriptor(which));
    }
  };
  std::unique_ptr<void, ended> descriptor_;
};

/// A graph of operations on tensors of four dimensions, which it makes one after the other. Tensors that no caller
/// gives are within it.
class cudnn_graph {
 public:
  using extent = std::array<std::int64_t, 4>;

  /// A tensor of the graph.
  struct tensor {
    cudnnBackendDescriptor_t of = nullptr;    ///< its descriptor
    cudnnDataType_t type = CUDNN_DATA_FLOAT;  ///< of its elements
    /// Both in elements.
    extent sizes{}, strides{};
  };

  /// A tensor of memory that a run gives, under a number; one number, which the host gives; one that is within.
  [[nodiscard]] tensor given(std::int64_t number, cudnnDataType_t type, const extent& sizes, const extent& strides) {
    return add(number, type, sizes, strides, tensor_place::memory);
  }
  [[nodiscard]] tensor scalar(std::int64_t number) {
    return add(number, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, tensor_place::value);
  }
  [[nodiscard]] tensor inner(cudnnDataType_t type, const extent& sizes) {
    return add(next_++, type, sizes, dense(sizes), tensor_place::within);
  }

  /// c = a b of the last two dimensions; fewer heads of b are shared by those of a.
  void matmul(const tensor& a, const tensor& b, const tensor& c) {
    const cudnn_descriptor& how = kept(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT, out_);
    how.finalize(out_);
    cudnn_descriptor& op = operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    connect(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a), connect(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    connect(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    op.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how, out_);
    op.finalize(out_);
  }
  [[nodiscard]] tensor matmul(const tensor& a, const tensor& b, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    const tensor c = inner(type, {a.sizes[0], a.sizes[1], a.sizes[2], b.sizes[3]});
    matmul(a, b, c);
    return c;
  }

  /// y of x and of up to two more; the second of these says where y is x.
  void pointwise(cudnnPointwiseMode_t mode, const tensor& y, const tensor& x, const tensor* b = nullptr,
                 const tensor* where_x = nullptr, cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT,
                 std::int64_t axis = -1) {
    const cudnn_descriptor& how = kept(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode, out_);
    how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, arithmetic, out_);
    if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis, out_);
    how.finalize(out_);
    cudnn_descriptor& op = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how, out_);
    connect(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b != nullptr) connect(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
    if (where_x != nullptr) connect(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *where_x);
    connect(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    op.finalize(out_);
  }
  [[nodiscard]] tensor pointwise(cudnnPointwiseMode_t mode, const tensor& x, const tensor* b = nullptr,
                                 cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    const tensor y = inner(type, x.sizes);
    pointwise(mode, y, x, b);
    return y;
  }
  /// x where the key is not behind the query, else `otherwise`.
  [[nodiscard]] tensor causal(const tensor& x, const tensor& otherwise) {
    const tensor row = inner(CUDNN_DATA_INT32, x.sizes), column = inner(CUDNN_DATA_INT32, x.sizes);
    const tensor seen = inner(CUDNN_DATA_BOOLEAN, x.sizes), y = inner(CUDNN_DATA_FLOAT, x.sizes);
    pointwise(CUDNN_POINTWISE_GEN_INDEX, row, x, nullptr, nullptr, CUDNN_DATA_FLOAT, 2);
    pointwise(CUDNN_POINTWISE_GEN_INDEX, column, x, nullptr, nullptr, CUDNN_DATA_FLOAT, 3);
    pointwise(CUDNN_POINTWISE_CMP_GE, seen, row, &column, nullptr, CUDNN_DATA_BOOLEAN);
    pointwise(CUDNN_POINTWISE_BINARY_SELECT, y, x, &otherwise, &seen);
    return y;
  }

  /// y of x, over the dimensions in which y is smaller.
  void reduce(cudnnReduceTensorOp_t by, const tensor& x, const tensor& y) {
    const cudnn_descriptor& how = kept(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, by, out_);
    how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT, out_);
    how.finalize(out_);
    cudnn_descriptor& op = operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    connect(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x), connect(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how, out_);
    op.finalize(out_);
  }
  /// Of each row.
  [[nodiscard]] tensor reduce_rows(cudnnReduceTensorOp_t by, const tensor& x) {
    const tensor y = inner(CUDNN_DATA_FLOAT, {x.sizes[0], x.sizes[1], x.sizes[2], 1});
    reduce(by, x, y);
    return y;
  }
  /// The last two dimensions the other way round, without moving anything.
  [[nodiscard]] tensor turned(const tensor& x, cudnnDataType_t type) {
    extent sizes = x.sizes, strides = x.strides;
    std::swap(sizes[2], sizes[3]), std::swap(strides[2], strides[3]);
    const tensor y = add(next_++, type, sizes, strides, tensor_place::within);
    cudnn_descriptor& op = operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    connect(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x), connect(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    op.finalize(out_);
    return y;
  }

  /// All of it, for `handle`; with it ends what it is made of.
  [[nodiscard]] const cudnn_descriptor& finish(cudnnHandle_t handle) {
    const cudnn_descriptor& all = kept(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    all.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            std::span<const cudnnBackendDescriptor_t>(operations_), out_);
    all.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle, out_);
    all.finalize(out_);
    return all;
  }
  [[nodiscard]] cudnn_outcome& outcome() noexcept { return out_; }
  [[nodiscard]] static constexpr extent dense(const extent& of) noexcept {
    return {of[1] * of[2] * of[3], of[2] * of[3], of[3], 1};
  }

 private:
  enum class tensor_place : std::uint8_t { memory, value, within };

  cudnn_descriptor& kept(cudnnBackendDescriptorType_t kind) { return all_.emplace_back(kind, out_); }
  cudnn_descriptor& operation(cudnnBackendDescriptorType_t kind) {
    cudnn_descriptor& made = kept(kind);
    operations_.push_back(made.get());
    return made;
  }
  void connect(const cudnn_descriptor& op, cudnnBackendAttributeName_t as, const tensor& what) {
    op.set(as, CUDNN_TYPE_BACKEND_DESCRIPTOR, what.of, out_);
  }
  tensor add(std::int64_t number, cudnnDataType_t type, const extent& sizes, const extent& strides,
             tensor_place where_it_is) {
    const cudnn_descriptor& made = kept(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, number, out_);
    made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type, out_);
    made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::span<const std::int64_t>(sizes), out_);
    made.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::span<const std::int64_t>(strides), out_);
    made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::int64_t{16}, out_);
    if (where_it_is == tensor_place::within) made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true, out_);
    if (where_it_is == tensor_place::value) made.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true, out_);
    made.finalize(out_);
    return {made.get(), type, sizes, strides};
  }

  cudnn_outcome out_;
  std::deque<cudnn_descriptor> all_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  std::int64_t next_ = 1000;  // of those within; others have lower numbers
};

/// The tensors of an attention that a run gives, by their numbers.
struct attention_tensors {
  /// One each.
  enum number : std::int64_t {
    queries = 1,
    keys,
    values,
    context,
    log_sums,
    scale,
    masked,
    one,
    dcontext,
    dqueries,
    dkeys,
    dvalues,
    sums
  };
};

/// The graph of an attention. What a head needs is in float; what tensor cores multiply is bf16.
[[nodiscard]] inline std::unique_ptr<cudnn_graph> attention_graph(const attention_problem& of) {
  using number = attention_tensors;
  auto made = std::make_unique<cudnn_graph>();
  cudnn_graph& g = *made;
  const auto whole = [](std::size_t count) { return static_cast<std::int64_t>(count); };
  const std::int64_t b = whole(of.sequences), h = whole(of.heads), hk = whole(of.kv_heads), s = whole(of.length),
                     d = whole(of.head_size);
  const auto rows = [&](std::int64_t as, std::int64_t heads, std::size_t stride) {
    return g.given(as, CUDNN_DATA_BFLOAT16, {b, heads, s, d}, {s * whole(stride), d, whole(stride), 1});
  };
  const auto columns = [&](std::int64_t as, std::int64_t heads, std::size_t stride) {
    return g.given(as, CUDNN_DATA_BFLOAT16, {b, heads, d, s}, {s * whole(stride), d, 1, whole(stride)});
  };
  const auto of_rows = [&](std::int64_t as) { return g.given(as, CUDNN_DATA_FLOAT, {b, h, s, 1}, {h * s, s, 1, 1}); };
  const auto q = rows(number::queries, h, of.query_stride), kt = columns(number::keys, hk, of.key_stride);
  const auto scale = g.scalar(number::scale), masked = g.scalar(number::masked);
  const auto stats = of_rows(number::log_sums);
  const auto context = rows(number::context, h, of.context_stride);
  if (of.pass == attention_pass::forward) {
    const auto v = rows(number::values, hk, of.value_stride);
    const auto scores = g.causal(g.pointwise(CUDNN_POINTWISE_MUL, g.matmul(q, kt), &scale), masked);
    const auto most = g.reduce_rows(CUDNN_REDUCE_TENSOR_MAX, scores);
    const auto weights = g.pointwise(CUDNN_POINTWISE_EXP, g.pointwise(CUDNN_POINTWISE_SUB, scores, &most));
    const auto sum = g.reduce_rows(CUDNN_REDUCE_TENSOR_ADD, weights);
    const auto logarithm = g.pointwise(CUDNN_POINTWISE_LOG, sum);
    g.pointwise(CUDNN_POINTWISE_ADD, stats, most, &logarithm);
    g.matmul(g.pointwise(CUDNN_POINTWISE_DIV, weights, &sum, CUDNN_DATA_BFLOAT16), v, context);
    return made;
  }
  const auto vt = columns(number::values, hk, of.value_stride);
  const auto dcontext = rows(number::dcontext, h, of.heads * of.head_size);
  const auto one = g.scalar(number::one), sums = of_rows(number::sums);
  // The sums of the context by its gradient.
  const auto plain = g.reduce_rows(CUDNN_REDUCE_TENSOR_ADD, g.pointwise(CUDNN_POINTWISE_MUL, dcontext, &context));
  g.pointwise(CUDNN_POINTWISE_MUL, sums, plain, &one);
  // A gradient of heads that several of the queries share is the sum of theirs.
  const auto shared = [&](const cudnn_graph::tensor& left, const cudnn_graph::tensor& right, std::int64_t as) {
    const auto to = rows(as, hk, of.kv_heads * of.head_size);
    if (h == hk) return g.matmul(left, right, to);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, g.matmul(left, right, CUDNN_DATA_BFLOAT16), to);
  };
  const auto scores = g.pointwise(CUDNN_POINTWISE_MUL, g.matmul(q, kt), &scale);
  const auto weights =
      g.pointwise(CUDNN_POINTWISE_EXP, g.causal(g.pointwise(CUDNN_POINTWISE_SUB, scores, &stats), masked));
  shared(g.turned(weights, CUDNN_DATA_BFLOAT16), dcontext, number::dvalues);
  const auto less = g.pointwise(CUDNN_POINTWISE_SUB, g.matmul(dcontext, vt), &sums);
  const auto by_weight = g.pointwise(CUDNN_POINTWISE_MUL, less, &weights);
  const auto dscores = g.pointwise(CUDNN_POINTWISE_MUL, by_weight, &scale);
  shared(g.turned(dscores, CUDNN_DATA_BFLOAT16), q, number::dkeys);
  // No memory that blocks add to in any order: its sums are those of a product.
  g.matmul(dscores, g.turned(kt, CUDNN_DATA_BFLOAT16), rows(number::dqueries, h, of.heads * of.head_size));
  return made;
}

/// cuDNN, of one stream. Its handle and its plans end with it.
class cudnn_attention {
 public:
  /// A plan, with the graph that it is of.
  struct plan {
    std::unique_ptr<cudnn_graph> graph;  ///< which it is of
    cudnn_descriptor of;                 ///< as cuDNN runs it
  };
  using plan_type = const plan*;

  /// Of a stream of an Api, or of CUDA. A cuDNN that does not open is told by the first `plans`.
  template <class Api, class Stream>
  cudnn_attention(const Api&, const Stream& on) : cudnn_attention(on.order) {}
  /// Of a stream of CUDA.
  explicit cudnn_attention(cudaStream_t on) {
    cudnnHandle_t made = nullptr;
    if (!opened_.note("cudnnCreate", cudnnCreate(&made))) return;
    handle_.reset(made);
    opened_.note("cudnnSetStream", cudnnSetStream(made, on));
  }

  /// Of a backward the scores' gradients in bf16, whose rows are whole tiles, since the queries' gradients are then
  /// sums of a product and no block adds to another's; and where heads share keys, gradients of all heads. More for
  /// what is aligned, and for numbers of a row and head.
  [[nodiscard]] static std::size_t bound(const attention_problem& of) noexcept {
    const attention_extent all = of.extent();
    checked_size bytes = all.sums() * (2 * sizeof(float)) + aligned_bytes;
    if (of.pass == attention_pass::backward) {
      const std::size_t rows = (of.length + 63) / 64 * 64, columns = (of.length + 127) / 128 * 128;
      bytes += checked_size(of.sequences) * of.heads * rows * columns * sizeof(bf16);
      if (of.heads != of.kv_heads) bytes += all.queries() * (2 * sizeof(bf16));
    }
    return bytes.saturated();
  }

  /// By the heuristic of cuDNN. Engines do not look at addresses: rows that are not aligned as they load have none.
  [[nodiscard]] std::string plans(const attention_problem& of, std::size_t room,
                                  std::span<library_answer<plan_type>> answers, std::size_t& count) {
    count = 0;
    if (!opened_.succeeded()) return opened_.text();
    if (of.alignment < 16 || of.head_size % 8 != 0) return {};
    std::unique_ptr<cudnn_graph> graph = attention_graph(of);
    cudnn_outcome& out = graph->outcome();
    const cudnn_descriptor& all = graph->finish(handle_.get());
    const cudnn_descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, out);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, all, out);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A, out);
    if (!out.succeeded()) return out.text();
    cudnn_outcome asked;  // a graph that no engine knows is no failure
    if (!heuristic.finalize(asked)) return {};
    for (const cudnn_descriptor& each :
         heuristic.get_all(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, answers.size(), out)) {
      cudnn_outcome of_engine;
      plan made{nullptr, cudnn_descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, of_engine)};
      const library_answer<plan_type> answer = answer_of(each, made.of, of_engine);
      if (!of_engine.succeeded()) continue;  // as one that this device does not have
      answers[count] = answer;
      if (answers[count++].bits != result_bits::repeated || answer.workspace_bytes > room) continue;
      made.graph = std::move(graph);
      kept_.push_back(std::make_unique<plan>(std::move(made)));
      answers[count - 1].way = kept_.back().get();
      return {};
    }
    return out.text();
  }

  /// Queues a call by a plan of its problem; why it could not, or nothing.
  [[nodiscard]] std::string run(const attention_call<bf16>& call, plan_type by, std::span<std::byte> memory) const {
    using number = attention_tensors;
    const float scale = static_cast<float>(call.sizes.scale()), masked = masked_score();
    const std::array<std::int64_t, 7> numbers{number::queries,  number::keys,  number::values, number::context,
                                              number::log_sums, number::scale, number::masked};
    const std::array<const void*, 7> places{call.queries.data, call.keys.data, call.values.data, call.context.data,
                                            call.log_sums,     &scale,         &masked};
    return execute(by, numbers, places, memory);
  }
  /// Queues a call by a plan of its problem; why it could not, or nothing.
  [[nodiscard]] std::string run(const narrow_gradient_call& call, plan_type by, std::span<std::byte> memory) const {
    using number = attention_tensors;
    const float scale = static_cast<float>(call.sizes.scale()), masked = masked_score(), one = 1;
    const std::array<std::int64_t, 13> numbers{number::queries,  number::keys,     number::values, number::context,
                                               number::log_sums, number::scale,    number::masked, number::one,
                                               number::dcontext, number::dqueries, number::dkeys,  number::dvalues,
                                               number::sums};
    const std::array<const void*, 13> places{
        call.queries.data, call.keys.data, call.values.data,   call.context.data,  call.log_sums,   &scale,
        &masked,           &one,           call.dcontext.data, call.dqueries.data, call.dkeys.data, call.dvalues.data,
        call.sums};
    return execute(by, numbers, places, memory);
  }

 private:
  struct ended {
    void operator()(cudnnHandle_t which) const noexcept { static_cast<void>(cudnnDestroy(which)); }
  };
  using handle_type = std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, ended>;

  // Engines before 9.10 expect a finite one.
  [[nodiscard]] static float masked_score() noexcept {
    using limits = std::numeric_limits<float>;
    return cudnnGetVersion() < 91000 ? limits::lowest() : -limits::infinity();
  }

  // Of an engine with its settings: the plan of it, and what it says of itself.
  [[nodiscard]] library_answer<plan_type> answer_of(const cudnn_descriptor& config, const cudnn_descriptor& made,
                                                    cudnn_outcome& out) const {
    library_answer<plan_type> answer;
    made.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle_.get(), out);
    made.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config, out);
    if (!made.finalize(out)) return answer;
    std::int64_t bytes = 0, index = -1;
    made.read(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, std::span(&bytes, 1), out);
    fnv1a all;
    all.add(cudnnGetVersion()).add(static_cast<std::uint64_t>(bytes));
    std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
    for (const cudnn_descriptor& engine :
         config.get_all(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1, out)) {
      engine.read(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, std::span(&index, 1), out);
      const std::size_t count = engine.read(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                            std::span<cudnnBackendNumericalNote_t>(notes), out);
      if (std::count(notes.begin(), notes.begin() + static_cast<std::ptrdiff_t>(count),
                     CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) > 0)
        answer.bits = result_bits::varying;
    }
    all.add(static_cast<std::uint64_t>(index));
    for (const cudnn_descriptor& knob :
         config.get_all(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, most_knobs, out)) {
      cudnnBackendKnobType_t kind{};
      std::int64_t value = 0;
      knob.read(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, std::span(&kind, 1), out);
      knob.read(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, std::span(&value, 1), out);
      all.add(static_cast<std::uint64_t>(kind)).add(static_cast<std::uint64_t>(value));
    }
    answer.word = all.value();
    answer.workspace_bytes = static_cast<std::size_t>(bytes);
    return answer;
  }

  [[nodiscard]] std::string execute(plan_type by, std::span<const std::int64_t> numbers,
                                    std::span<const void* const> places, std::span<std::byte> memory) const {
    cudnn_outcome out;
    const cudnn_descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, out);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, numbers, out);
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, places, out);
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, static_cast<void*>(memory.data()), out);
    if (pack.finalize(out))
      out.note("cudnnBackendExecute", cudnnBackendExecute(handle_.get(), by->of.get(), pack.get()));
    return out.text();
  }

  static constexpr std::size_t most_knobs = 32, aligned_bytes = 65'536;

  handle_type handle_;  // before the plans, which end first
  cudnn_outcome opened_;
  std::vector<std::unique_ptr<plan>> kept_;
};

static_assert(attention_library<cudnn_attention>);

}  // namespace belay::inline BELAY_ABI::cuda
