// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two checkpoints, whatever meshes have written them: in what they differ. Values are read some MiB at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/finite.hpp"
#include "belay/core/view.hpp"
#include "belay/train/checkpoint.hpp"
#include "tools/belay_checkpoint/contents.hpp"
#include "tools/belay_checkpoint/show.hpp"

namespace belay_checkpoint {

/// Where two parts of tensors differ most. A difference with a NaN or an infinity is the largest, and has no amount.
struct largest_difference {
  std::uint64_t element = 0;
  std::vector<std::uint64_t> coordinates;
  double a = 0, b = 0;

  [[nodiscard]] bool has_amount() const noexcept { return belay::is_finite(a) && belay::is_finite(b); }
  [[nodiscard]] double amount() const noexcept { return std::fabs(a - b); }
  [[nodiscard]] bool operator>(const largest_difference& other) const noexcept {
    return other.has_amount() && (!has_amount() || amount() > other.amount());
  }
};

/// One tensor, or one part of it, of which something is not the same.
struct tensor_difference {
  std::string tensor, part;  // no part: the tensor itself is missing, or of another shape
  std::string what;          // empty: values alone differ
  std::uint64_t elements = 0, differing = 0;
  std::optional<largest_difference> largest;
};

struct difference {
  std::vector<tensor_difference> tensors;
  std::vector<std::string> others;  // of step, optimizers and states, as text
  std::uint64_t compared = 0;       // elements

  [[nodiscard]] bool empty() const noexcept { return tensors.empty() && others.empty(); }
};

class comparison {
 public:
  /// The differences between the checkpoints in folders `a` and `b`; ids and meshes may differ. Throws
  /// belay::file_error for what cannot be read.
  [[nodiscard]] static difference of(const std::string& a, const std::string& b) {
    comparison work(a, b);
    work.compare_others();
    work.compare_tensors();
    return std::move(work.out_);
  }

 private:
  static constexpr std::size_t at_once = std::size_t{1} << 18U;  // elements, 2 MiB of each

  comparison(const std::string& a, const std::string& b) : a_(a), b_(b) {}

  [[nodiscard]] const belay::manifest& a() const noexcept { return a_.content(); }
  [[nodiscard]] const belay::manifest& b() const noexcept { return b_.content(); }

  void compare_others() {
    if (a().step != b().step)
      out_.others.push_back("step: " + std::to_string(a().step) + " and " + std::to_string(b().step));
    if (a().optimizers.size() != b().optimizers.size())
      out_.others.push_back("optimizers: " + std::to_string(a().optimizers.size()) + " and " +
                            std::to_string(b().optimizers.size()));
    for (std::size_t i = 0; i < std::min(a().optimizers.size(), b().optimizers.size()); ++i)
      compare(a().optimizers[i], b().optimizers[i], "optimizer " + std::to_string(i));
    each_pair(a().states, b().states, [&](const std::string& name, const std::string* x, const std::string* y) {
      const auto shown = [](const std::string* text) { return text ? belay::printable_start(*text, 60) : "none"; };
      if (x == nullptr || y == nullptr || *x != *y)
        out_.others.push_back("state " + belay::printable(name) + ": " + shown(x) + " and " + shown(y));
    });
  }
  void compare(const belay::manifest_optimizer& x, const belay::manifest_optimizer& y, const std::string& name) {
    if (x.steps != y.steps)
      out_.others.push_back(name + ", steps: " + std::to_string(x.steps) + " and " + std::to_string(y.steps));
    each_pair(x.settings, y.settings, [&](const std::string& setting, const double* p, const double* q) {
      const auto shown = [](const double* value) { return value ? number_text(*value) : std::string("none"); };
      if (p == nullptr || q == nullptr || *p != *q)
        out_.others.push_back(name + ", " + belay::printable(setting) + ": " + shown(p) + " and " + shown(q));
    });
  }
  // Calls `visit(name, its value in x or null, its value in y or null)`.
  template <class T, class Visit>
  static void each_pair(const std::vector<std::pair<std::string, T>>& x,
                        const std::vector<std::pair<std::string, T>>& y, Visit&& visit) {
    const auto find = [](const auto& all, const std::string& name) -> const T* {
      const auto found = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.first == name; });
      return found == all.end() ? nullptr : &found->second;
    };
    for (const auto& [name, value] : x) visit(name, &value, find(y, name));
    for (const auto& [name, value] : y)
      if (find(x, name) == nullptr) visit(name, static_cast<const T*>(nullptr), &value);
  }

  void compare_tensors() {
    for (const belay::manifest_tensor& each : a().tensors) {
      const belay::manifest_tensor* const other = b().find(each.name);
      if (other == nullptr)
        add(each, "", "is in the first alone");
      else if (other->shape != each.shape)
        add(each, "", "is " + belay::shape_text(each.shape) + " and " + belay::shape_text(other->shape));
      else
        compare(each, *other);
    }
    for (const belay::manifest_tensor& each : b().tensors)
      if (a().find(each.name) == nullptr) add(each, "", "is in the second alone");
  }
  void add(const belay::manifest_tensor& tensor, const std::string& part, std::string what) {
    out_.tensors.push_back({tensor.name, part, std::move(what), 0, 0, {}});
  }

  void compare(const belay::manifest_tensor& x, const belay::manifest_tensor& y) {
    for (const std::string& part : parts_of(x)) {
      if (!b_.has_part(y, part)) {
        add(x, part, "is in the first alone");
        continue;
      }
      tensor_difference found{x.name, part, "", 0, 0, {}};
      const auto type_of = [&](const belay::manifest_tensor& tensor) {
        return std::find_if(tensor.pieces.begin(), tensor.pieces.end(),
                            [&](const auto& one) { return one.part == part; })
            ->type;
      };
      if (type_of(x) != type_of(y))
        found.what = "is " + std::string(belay::safetensors::name(type_of(x))) + " and " +
                     std::string(belay::safetensors::name(type_of(y)));
      compare_values(x, y, found);
      if (found.differing > 0 || !found.what.empty()) out_.tensors.push_back(std::move(found));
    }
    for (const std::string& part : parts_of(y))
      if (!a_.has_part(x, part)) add(y, part, "is in the second alone");
  }

  // Bit by bit, as doubles: every stored number is one.
  void compare_values(const belay::manifest_tensor& x, const belay::manifest_tensor& y, tensor_difference& out) {
    out.elements = 1;
    for (const std::uint64_t extent : x.shape) out.elements *= extent;
    out_.compared += out.elements;
    of_a_.resize(at_once);
    of_b_.resize(at_once);
    for (std::uint64_t first = 0; first < out.elements; first += at_once) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(at_once, out.elements - first));
      a_.read(x, out.part, first, std::span(of_a_).first(count));
      b_.read(y, out.part, first, std::span(of_b_).first(count));
      for (std::size_t i = 0; i < count; ++i) {
        if (std::bit_cast<std::uint64_t>(of_a_[i]) == std::bit_cast<std::uint64_t>(of_b_[i])) continue;
        ++out.differing;
        largest_difference here{first + i, {}, of_a_[i], of_b_[i]};
        if (!out.largest || here > *out.largest) out.largest = std::move(here);
      }
    }
    if (!out.largest) return;
    std::uint64_t rest = out.largest->element;
    out.largest->coordinates.resize(x.shape.size());
    for (std::size_t d = x.shape.size(); d-- > 0; rest /= x.shape[d]) out.largest->coordinates[d] = rest % x.shape[d];
  }

  belay::checkpoint_reader<> a_, b_;
  std::vector<double> of_a_, of_b_;
  difference out_;
};

}  // namespace belay_checkpoint
