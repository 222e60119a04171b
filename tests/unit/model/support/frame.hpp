// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A frame for testing layers alone: memory from the heap, poisoned so that a layer that reads what it did
// not write yields NaN, scratch given back at the end of its scope, arithmetic run at once.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "belay/core/ledger.hpp"
#include "belay/core/view.hpp"
#include "belay/device/stream.hpp"
#include "belay/step/arithmetic.hpp"
#include "belay/step/frame.hpp"
#include "model/products.hpp"

namespace test {

class frame : public belay::frame_arithmetic<frame> {
 public:
  frame() { kit_.use_products(model::products()); }

  template <class T, std::size_t Rank>
  belay::view<T, Rank> keep(belay::extents<Rank> shape) {
    kept_bytes += belay::element_count(shape) * sizeof(T);
    return take<T>(kept_, shape);
  }
  template <class T, std::size_t Rank>
  belay::view<T, Rank> remember(belay::extents<Rank> shape) {
    return keep<T>(shape);
  }
  template <class T, std::size_t Rank>
  belay::view<T, Rank> scratch(belay::extents<Rank> shape) {
    return take<T>(scratch_, shape);
  }

  class scope {
   public:
    explicit scope(frame& owner) : owner_(&owner), size_(owner.scratch_.size()) {}
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() { owner_->scratch_.resize(size_); }

   private:
    frame* owner_;
    std::size_t size_;
  };
  scope scratch_scope() { return scope{*this}; }

  template <class Work>
  void run(Work&& work) {
    work();
  }
  [[nodiscard]] belay::host_kit<>& kit() const { return kit_; }
  template <class Parameter>
  [[nodiscard]] auto read(const Parameter& parameter) const {
    return parameter.values();
  }
  template <class Parameter>
  [[nodiscard]] auto add_to(const Parameter& parameter) const {
    return belay::adding_to(parameter.gradient_values());
  }

  // An expert exchange asks the engine for these.
  class engine_type {
   public:
    void adopt(const auto&) {}
    [[nodiscard]] belay::ledger& obligations() { return ledger_; }
    [[nodiscard]] belay::immediate_stream& compute() { return stream_; }
    static belay::kernel::findings_record* found() { return nullptr; }
    static void hand_over() {}

   private:
    belay::ledger ledger_;
    belay::immediate_stream stream_;
  };
  [[nodiscard]] engine_type& engine() { return engine_; }
  template <class Work>
  void run_on_host(Work&& work) {
    work();
  }
  [[nodiscard]] belay::obligation_id open(belay::obligation_kind kind, std::size_t bytes,
                                          std::span<const std::size_t> shape, belay::where at) {
    return belay::invocation{layer(), 0, 0, at}.open(engine_.obligations(), kind, bytes, shape, at);
  }
  void close(belay::obligation_id id, belay::where at) { engine_.obligations().close(id, at); }
  static bool rehearsing() { return false; }

  static belay::kernel::findings_note found(belay::where = {}) { return {}; }
  static bool replaying() { return false; }
  static bool forward_only() { return false; }
  static const char* layer() { return "layer"; }
  static std::size_t layer_index() { return 0; }
  static std::size_t micro_batch() { return 0; }

  std::size_t kept_bytes = 0;

 private:
  using block = std::unique_ptr<std::byte[]>;

  template <class T, std::size_t Rank>
  static belay::view<T, Rank> take(std::vector<block>& from, belay::extents<Rank> shape) {
    const std::size_t count = belay::element_count(shape);
    from.push_back(block(new std::byte[count * sizeof(T) + 1]));
    T* data = reinterpret_cast<T*>(from.back().get());
    for (std::size_t i = 0; i < count; ++i) {
      if constexpr (std::is_floating_point_v<T>)
        data[i] = std::numeric_limits<T>::quiet_NaN();
      else
        data[i] = std::numeric_limits<T>::max();
    }
    return {data, shape};
  }

  mutable belay::host_kit<> kit_;
  engine_type engine_;
  std::vector<block> kept_;
  std::vector<block> scratch_;
};

}  // namespace test
