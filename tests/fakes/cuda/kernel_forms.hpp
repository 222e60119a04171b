// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which form each kernel takes: by packs of 16 bytes, or the general one, which takes any address and width. Here teams
// are warps of 32 lanes, as they are on a GPU, and experts' products and attention choose as they do there; what a
// kernel of blocks computes is the host's, or in a test's own Api.
//
//   fakes::form_counting_api api;
//   ...                                      // a step over it
//   CHECK(api.forms().of(fakes::kernel_form::general).empty());
//
// With `begins_only()` a kernel does its first indices alone, and blocks and products compute nothing: so a model of
// any size is asked for its forms and calls, in memory that is hardly touched.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "belay/backend/cuda/attention_fragments.hpp"
#include "belay/backend/cuda/grouped_tiles.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/cuda/fiber_block.hpp"

namespace fakes {

/// `only`: a kernel that has no form for packs, or has met nothing that it would move by them.
enum class kernel_form : std::uint8_t { packed, general, only };

/// Forms that were taken, by the name of a kernel. Any thread may note one.
class kernel_forms {
 public:
  template <class K>
  void note(kernel_form form) {
    const std::lock_guard lock(mutex_);
    ++taken_[name_of_kernel<K>()][static_cast<std::size_t>(form)];
  }
  /// The kernels that have taken it; of `only` those that have never taken another.
  [[nodiscard]] std::vector<std::string> of(kernel_form form) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> out;
    for (const auto& [name, counts] : taken_)
      if (form == kernel_form::only ? counts[0] + counts[1] == 0 : counts[static_cast<std::size_t>(form)] > 0)
        out.push_back(name);
    return out;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::array<std::size_t, 3>> taken_;
};

/// A warp whose lanes are fibers, and what it was told of forms.
struct fiber_warp {
  static constexpr unsigned lanes = fibers::warp;
  unsigned lane;
  std::array<bool, 2>* took;

  void synchronize() const { static_cast<void>(fibers::exchanged({})); }
  template <class T>
  [[nodiscard]] T from(unsigned other, T value) const {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    std::uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    word = fibers::exchanged({word})[other][0];
    std::memcpy(&value, &word, sizeof(T));
    return value;
  }
  void took_packs(bool packs) const { (*took)[packs ? 0 : 1] = true; }
};

/// A device of the host whose kernels of rows are run by warps, and which keeps count of forms.
class form_counting_api : public device_api {
 public:
  using device_api::device_api;

  [[nodiscard]] kernel_forms& forms() noexcept { return forms_; }
  void begins_only() noexcept { begins_only_ = true; }
  /// Then as much as a GPU's has.
  [[nodiscard]] std::size_t scratch_bytes() const noexcept {
    return begins_only_ ? std::size_t{16} << 20 : device_api::scratch_bytes();
  }

  template <class F>
  status_type each(stream_type on, std::size_t count, const F& f) {
    if constexpr (belay::kernel::packed<F>)
      forms_.note<F>(belay::kernel::takes_packs(f, count) ? kernel_form::packed : kernel_form::general);
    else
      forms_.note<F>(kernel_form::only);
    return device_api::each(on, begins_only_ && count > some_indices ? some_indices : count, f);
  }
  template <class G>
  status_type teams(stream_type on, std::size_t count, const G& g) {
    const std::size_t some = begins_only_ && count > 1 ? 1 : count;
    return compute("teams", on, g, [some, g, forms = &forms_] {
      std::array<bool, 2> took{};
      fibers warp(fiber_warp::lanes, some);
      for (std::size_t row = 0; row < some; ++row) warp.run([&](unsigned lane) { g(fiber_warp{lane, &took}, row); });
      if (took[0]) forms->note<G>(kernel_form::packed);
      if (took[1]) forms->note<G>(kernel_form::general);
      if (!took[0] && !took[1]) forms->note<G>(kernel_form::only);
    });
  }
  template <belay::grouped_call Call>
  status_type grouped(stream_type on, const Call& call, const belay::kernel::findings_note& found) {
    noted_blocks by{this, on, {}};
    belay::cuda::queue_grouped<tensor_fibers>(by, call, found);
    return begins_only_ ? by.got : device_api::grouped(on, call, found);
  }
  template <class C, class A, class B>
  status_type product(stream_type on, const belay::product_call<C, A, B>& call) {
    return begins_only_ ? begin("product", on, call) : device_api::product(on, call);
  }
  template <class C, class A>
  requires(sizeof(A) == 2) status_type
      product(stream_type on, const belay::product_call<C, A, A>& call, const algorithm_type& by) {
    return begins_only_ ? begin("product", on, call) : device_api::product(on, call, by);
  }
  /// The kernels of it, whose lanes run in seeded orders.
  template <class Call>
  status_type attention(stream_type on, const Call& call) {
    run_blocks by{this, on, {}};
    belay::cuda::queue_attention<tensor_fibers>(by, call);
    return by.got;
  }

 private:
  template <class K>
  static constexpr kernel_form form_of =
      K::access == belay::cuda::tile_access::packed ? kernel_form::packed : kernel_form::general;

  // What no block and no lane computes.
  template <class Kernel>
  status_type begin(const char* name, stream_type on, const Kernel& kernel) {
    return compute(name, on, kernel, [] {});
  }

  struct noted_blocks {
    form_counting_api* api;
    stream_type on;
    status_type got;
    template <class K>
    bool blocks(const K& k) {
      api->forms_.template note<K>(form_of<K>);
      return !api->begins_only_ || succeeded(got = api->begin("blocks", on, k));
    }
  };
  struct run_blocks {
    form_counting_api* api;
    stream_type on;
    status_type got;
    template <class G>
    bool teams(std::size_t count, const G& g) {
      return succeeded(got = api->teams(on, count, g));
    }
    template <class K>
    bool blocks(const K& k) {
      api->forms_.template note<K>(form_of<K>);
      if (api->begins_only_) return succeeded(got = api->begin("blocks", on, k));
      return succeeded(got = api->compute("attention", on, [k] { for_each_block(k.blocks(), k, 0); }));
    }
  };

  static constexpr std::size_t some_indices = std::size_t{1} << 14;

  kernel_forms forms_;
  bool begins_only_ = false;
};

}  // namespace fakes
