// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What one would write by hand for two ranks that sum floats in memory that both have mapped: no checks, no errors, no
// choice. It exists in several settings (temporal or non-temporal stores, copies by vectors or `rep movsb`, pull from
// the peer or push to it); the best of each size is what the library is compared with. Built with -march=native.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "collectives/operation.hpp"
#include "collectives/spin.hpp"

namespace bench {

class handwritten_baseline {
 public:
  enum class copies { vectors, string, around };
  struct setting {
    std::string name;
    bool push = false;
    bool around = false;    // reductions store around the caches
    bool one_shot = false;  // each rank reduces everything
    copies how = copies::vectors;
  };

  static constexpr std::size_t bytes() noexcept { return sizeof(line) * 8; }

  /// `memory` is zero at first and mapped by both ranks; `in` and `out` are both ranks' buffers, aligned to 64 bytes.
  handwritten_baseline(void* memory, int rank, float* const (&in)[2], float* const (&out)[2])
      : lines_(static_cast<line*>(memory)), rank_(rank), in_{in[0], in[1]}, out_{out[0], out[1]} {}

  /// The settings that make sense for so many bytes; none: there is no baseline.
  [[nodiscard]] static std::vector<setting> settings(op what, std::size_t bytes, bool in_place) {
    switch (what) {
      case op::barrier: return {{"barrier", false, false, false, copies::vectors}};
      case op::all_reduce: {
        if (bytes <= sizeof(line::payload)) return {{"line", false, false, false, copies::vectors}};
        std::vector<setting> out;
        if (bytes % 128 != 0) {  // in place no rank may read all of what others write
          if (in_place) return {};
          return {{"one-shot", false, false, true, copies::vectors}};
        }
        if (!in_place && bytes <= (1U << 20)) out.push_back({"one-shot", false, false, true, copies::vectors});
        out.push_back({"push", true, false, false, copies::vectors});
        if (bytes > 65536) out.push_back({"push, around the caches", true, true, false, copies::vectors});
        out.push_back({"pull, vectors", false, false, false, copies::vectors});
        out.push_back({"pull, rep movsb", false, false, false, copies::string});
        if (bytes > 65536) out.push_back({"pull, around the caches", false, true, false, copies::around});
        return out;
      }
      case op::reduce_scatter:
        if (bytes > 65536)
          return {{"cached", false, false, false, copies::vectors},
                  {"around the caches", false, true, false, copies::vectors}};
        return {{"cached", false, false, false, copies::vectors}};
      case op::all_to_all:
      case op::all_to_all_v:
        if (in_place) return {};
        return moves(bytes);
      case op::all_gather: return moves(bytes);
      default: return {};
    }
  }

  /// All-reduces `count` floats, reduces or moves parts of `count` floats.
  void call(op what, std::size_t count, bool in_place, const setting& how) {
    float* const in[2] = {in_place ? out_[0] : in_[0], in_place ? out_[1] : in_[1]};
    const auto r = static_cast<std::size_t>(rank_);
    const std::size_t q = 1 - r;
    switch (what) {
      case op::all_reduce: all_reduce(in, count, how); break;
      case op::reduce_scatter:
        barrier();
        // In place the result is this rank's part of its buffer.
        add(out_[r] + (in_place ? r * count : 0), nullptr, in[0] + r * count, in[1] + r * count, count, how.around);
        barrier();
        break;
      case op::all_gather: {
        barrier();
        const float* mine = in_place ? out_[r] + r * count : in_[r];
        const float* theirs = in_place ? out_[q] + q * count : in_[q];
        if (how.push)
          copy(out_[q] + r * count, mine, count, how.how);
        else
          copy(out_[r] + q * count, theirs, count, how.how);
        if (!in_place) copy(out_[r] + r * count, mine, count, how.how);
        barrier();
        break;
      }
      case op::all_to_all:
      case op::all_to_all_v:
        barrier();
        if (how.push)
          copy(out_[q] + r * count, in_[r] + q * count, count, how.how);
        else
          copy(out_[r] + q * count, in_[q] + r * count, count, how.how);
        copy(out_[r] + r * count, in_[r] + r * count, count, how.how);
        barrier();
        break;
      default: barrier(); break;
    }
  }

 private:
  struct alignas(128) line {
    std::atomic<std::uint64_t> flag{0};
    float payload[14];
  };

  [[nodiscard]] static std::vector<setting> moves(std::size_t bytes) {
    std::vector<setting> out{{"pull, vectors", false, false, false, copies::vectors},
                             {"pull, rep movsb", false, false, false, copies::string},
                             {"push, vectors", true, false, false, copies::vectors},
                             {"push, rep movsb", true, false, false, copies::string}};
    if (bytes > 65536) {
      out.push_back({"pull, around the caches", false, false, false, copies::around});
      out.push_back({"push, around the caches", true, false, false, copies::around});
    }
    return out;
  }

  void barrier() {
    ++rounds_;
    lines_[rank_].flag.store(rounds_, std::memory_order_release);
    while (lines_[1 - rank_].flag.load(std::memory_order_acquire) < rounds_) relax();
  }

  void all_reduce(float* const (&in)[2], std::size_t count, const setting& how) {
    const auto r = static_cast<std::size_t>(rank_);
    if (count * sizeof(float) <= sizeof(line::payload)) {
      // Data and sequence number in one line, two lines used alternately.
      line* const both = lines_ + 2 + 2 * (++posts_ % 2);
      std::memcpy(both[r].payload, in[r], count * sizeof(float));
      both[r].flag.store(posts_, std::memory_order_release);
      while (both[1 - r].flag.load(std::memory_order_acquire) != posts_) relax();
      for (std::size_t i = 0; i < count; ++i) out_[r][i] = both[0].payload[i] + both[1].payload[i];
      return;
    }
    barrier();
    const std::size_t half = count / 2, from = r * half, other = half - from;
    if (how.one_shot) {
      add(out_[r], nullptr, in[0], in[1], count, how.around);
    } else if (how.push) {
      add(out_[0] + from, out_[1] + from, in[0] + from, in[1] + from, half, how.around);
    } else {
      add(out_[r] + from, nullptr, in[0] + from, in[1] + from, half, how.around);
      barrier();
      copy(out_[r] + other, out_[1 - r] + other, half, how.how);
    }
    barrier();
  }

  static void add(float* to, float* also_to, const float* a, const float* b, std::size_t count, bool around) {
    std::size_t i = 0;
#if defined(__AVX512F__)
    if (reinterpret_cast<std::uintptr_t>(to) % 64 == 0) {
      for (; i + 16 <= count; i += 16) {
        const __m512 s = _mm512_add_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i));
        if (around) {
          _mm512_stream_ps(to + i, s);
          if (also_to != nullptr) _mm512_stream_ps(also_to + i, s);
        } else {
          _mm512_store_ps(to + i, s);
          if (also_to != nullptr) _mm512_store_ps(also_to + i, s);
        }
      }
      if (around) _mm_sfence();
    }
#endif
    for (; i < count; ++i) {
      const float s = a[i] + b[i];
      to[i] = s;
      if (also_to != nullptr) also_to[i] = s;
    }
    (void)around;
  }

  static void copy(float* to, const float* from, std::size_t count, copies how) {
    std::size_t bytes = count * sizeof(float);
    if (how == copies::string) {
#if defined(__x86_64__)
      void* d = to;
      const void* s = from;
      asm volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(bytes) : : "memory");
      return;
#endif
    }
#if defined(__AVX512F__)
    if (bytes % 256 == 0 && reinterpret_cast<std::uintptr_t>(to) % 64 == 0) {
      for (std::size_t i = 0; i < count; i += 64) {
        const __m512 v[4] = {_mm512_loadu_ps(from + i), _mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i + 32),
                             _mm512_loadu_ps(from + i + 48)};
        for (std::size_t k = 0; k < 4; ++k) {
          if (how == copies::around)
            _mm512_stream_ps(to + i + 16 * k, v[k]);
          else
            _mm512_store_ps(to + i + 16 * k, v[k]);
        }
      }
      if (how == copies::around) _mm_sfence();
      return;
    }
#endif
    std::memcpy(to, from, bytes);
  }

  line* lines_;
  int rank_;
  float* in_[2];
  float* out_[2];
  std::uint64_t rounds_ = 0;
  std::uint64_t posts_ = 0;
};

}  // namespace bench
