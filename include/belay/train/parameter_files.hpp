// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The parameters of a mesh as safetensors files. Every rank reads the byte ranges of what it keeps, and writes its own:
// no rank has a whole tensor that it does not keep, and none passes through another. What several ranks hold alike is
// written once.
//
//   belay::export_parameters(mesh, net, "my_model");       // collective; my_model/model.safetensors
//   belay::import_parameters(mesh, net, "my_model");       // on this mesh or another
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/lists_parameters.hpp"
#include "belay/parallel/local_box.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/placement.hpp"
#include "belay/train/safetensors/file_agreement.hpp"  // IWYU pragma: export
#include "belay/train/safetensors/folder.hpp"          // IWYU pragma: export
#include "belay/train/safetensors/header.hpp"
#include "belay/train/safetensors/writer.hpp"  // IWYU pragma: export
#include "belay/train/stage_names.hpp"

namespace belay::inline BELAY_ABI {

/// Which tensors of a file a parameter is: one of its name and shape. Another mapping is a function object of the same
/// form; the elements of its tensors, one tensor after another, are those of the whole parameter.
struct one_tensor_each {
  /// One tensor of the parameter's name and shape.
  template <class Parameter>
  [[nodiscard]] std::vector<safetensors::declaration> operator()(const Parameter& parameter) const {
    return {{parameter.name(),
             safetensors::stored_as<typename Parameter::value_type>,
             {parameter.shape().begin(), parameter.shape().end()}}};
  }
};

/// Calls `visit(declaration, first element in that tensor, values)` for the parts of `tensors`, which follow one
/// another, that `values` are: those from element `first` on.
template <class T>
void each_tensor_part(
    std::span<const safetensors::declaration> tensors, std::size_t first, std::span<T> values,
    function_ref<void(const safetensors::declaration&, std::size_t, std::type_identity_t<std::span<T>>)> visit) {
  for (const safetensors::declaration& each : tensors) {
    std::size_t size = 1;
    for (const std::uint64_t extent : each.shape) size *= static_cast<std::size_t>(extent);
    if (first >= size) {
      first -= size;
      continue;
    }
    const std::span<T> part = values.first(lesser_of(size - first, values.size()));
    if (part.empty()) return;
    visit(each, first, part);
    values = values.subspan(part.size());
    first = 0;
  }
}

/// Calls `visit(parameter)` for those of `model`, but of one that several stages of this rank share for the first
/// alone.
template <lists_parameters Model, class Visit>
void each_once(Model& model, Visit&& visit) {
  std::set<std::string> tied;
  model.for_each_parameter([&](auto& parameter) {
    if (!parameter.tied_over_stages() || tied.insert(parameter.name()).second) visit(parameter);
  });
}

/// Calls `visit(global_offset, std::span<const T>)` for what this rank writes of a parameter, number `number` of its
/// model; see `each_written`.
template <class T>
void each_written_of(const mesh& mesh, const parameter_base<T>& parameter, std::size_t number,
                     function_ref<void(std::size_t, std::type_identity_t<std::span<const T>>)> visit) {
  const copy_place copies = copies_of(mesh.shape(), mesh.layout_coordinate(), parameter.cut_directions(),
                                      parameter.divided() ? kept_part::shard : kept_part::local_part);
  std::size_t turn = number;
  parameter.each_held([&](std::size_t first, std::span<const T> values) {
    const local_part mine = copies.written(values.size(), sizeof(T), turn++);
    if (mine.count > 0) visit(first + mine.first, values.subspan(mine.first, mine.count));
  });
}

/// Calls `visit(parameter, global_offset, std::span<const T>)` for what this rank writes of the parameters of `model`:
/// over all ranks of the mesh, which call it with models that list the same ones, every element once. What several
/// ranks hold alike is divided among them, in pieces of at least a megabyte, or else goes to each in turn.
template <lists_parameters Model, class Visit>
void each_written(const mesh& mesh, Model& model, Visit&& visit) {
  std::size_t number = 0;
  each_once(model, [&](const auto& parameter) {
    each_written_of(mesh, parameter, number++,
                    [&](std::size_t first, auto values) { visit(parameter, first, values); });
  });
}

/// The tensors of a mesh's parameters, and the pipeline stage that writes each: the first that lists it.
struct declared_tensors {
  /// All tensors in the order of stages and models, which stage has each, and which stages list what several do.
  std::vector<safetensors::declaration> all;
  std::map<std::string, int, std::less<>> stage_of;
  std::map<std::string, std::vector<int>, std::less<>> listed_again = {};
};

/// Throws usage_error on all ranks of the mesh where stages have different values of a tensor that several list.
/// Collective, where there is one.
template <lists_parameters Model, class Tensors>
void expect_equal_copies(const mesh& mesh, Model& model, const declared_tensors& declared, const Tensors& tensors_of,
                         where at) {
  std::map<std::string_view, std::size_t> first;  // of a tensor's sums, one a stage
  std::size_t count = 0;
  for (const auto& [name, stages] : declared.listed_again) {
    first.emplace(name, count);
    count += stages.size();
  }
  if (count == 0) return;
  std::vector<std::uint64_t> sums(count);
  const int own = mesh.layout_coordinate().pipeline;
  each_written(mesh, model, [&](const auto& parameter, std::size_t begin, auto values) {
    const std::vector<safetensors::declaration> tensors = tensors_of(parameter);
    each_tensor_part(std::span<const safetensors::declaration>(tensors), begin, values,
                     [&](const safetensors::declaration& to, std::size_t element, auto part) {
                       const auto found = declared.listed_again.find(to.name);
                       if (found == declared.listed_again.end()) return;
                       const std::vector<int>& stages = found->second;
                       const auto mine = std::find(stages.begin(), stages.end(), own) - stages.begin();
                       sums[first.find(to.name)->second + static_cast<std::size_t>(mine)] +=
                           sum_of_elements(0, element, std::as_bytes(part), sizeof(part[0]));
                     });
  });
  mesh.control().all_reduce(std::span<std::uint64_t>(sums), sum, at);
  for (const auto& [name, stages] : declared.listed_again)
    expect_one_value(mesh.shape(), name, stages, std::span(sums).subspan(first.find(name)->second, stages.size()), at);
}

/// Those of the parameters of all stages, in the order of stages and models. A tensor that several stages list, as they
/// do with constants, is there once; of other shapes, types or values it is a usage_error on all ranks. Collective over
/// the mesh; a rehearsal knows its own stage's.
template <lists_parameters Model, class Tensors = one_tensor_each>
[[nodiscard]] declared_tensors tensors_of_mesh(const mesh& mesh, Model& model, const Tensors& tensors_of = {},
                                               where at = where::current()) {
  std::vector<safetensors::declaration> own;
  each_once(model, [&](auto& parameter) {
    for (safetensors::declaration& each : tensors_of(parameter)) own.push_back(std::move(each));
  });
  declared_tensors out;
  if (is_rehearsed(mesh.control())) {
    out.all = std::move(own);
    return out;
  }
  const auto& control = mesh.control();
  safetensors::file_agreement problems;
  safetensors::layout mine;
  problems.attempt([&] { mine = safetensors::lay_out(own, {}, at); });
  problems.agree(control, at);
  for (int stage = 0; stage < mesh.shape().pipeline; ++stage) {
    const int speaks = rank_at(mesh.shape(), {.pipeline = stage});
    const bool is_it = control.rank() == speaks;
    const std::string header =
        safetensors::broadcast_text(control, is_it ? mine.prefix.substr(8) : std::string(), speaks, at);
    std::uint64_t bytes[] = {mine.data_bytes};
    control.broadcast(std::span<std::uint64_t>(bytes), speaks, at);
    const std::string source = "tensors of stage " + std::to_string(stage);
    for (safetensors::tensor& each : safetensors::parse_header(header, bytes[0], source, at).tensors) {
      if (out.stage_of.emplace(each.name, stage).second) {
        out.all.push_back({std::move(each.name), each.type, std::move(each.shape)});
        continue;
      }
      const auto before =
          std::find_if(out.all.begin(), out.all.end(), [&](const auto& one) { return one.name == each.name; });
      if (before->type != each.type || before->shape != each.shape)
        throw usage_error("stages list tensor " + printable(each.name) + " in two shapes or types", at);
      std::vector<int>& stages = out.listed_again[each.name];
      if (stages.empty()) stages.push_back(out.stage_of.find(each.name)->second);
      stages.push_back(stage);
    }
  }
  expect_equal_copies(mesh, model, out, tensors_of, at);
  return out;
}

/// Takes all.
struct every_tensor {
  /// Takes every tensor.
  [[nodiscard]] bool operator()(const std::string&) const noexcept { return true; }
};

/// Gives `out` what this rank writes of the parameters of `model`, of the tensors of which `is_mine(name)` is true.
template <lists_parameters Model, class Writer, class Tensors = one_tensor_each, class Mine = every_tensor>
void write_parameters(const mesh& mesh, Model& model, Writer& out, const Tensors& tensors_of = {},
                      const Mine& is_mine = {}, where at = where::current()) {
  if (!is_rehearsed(mesh.world())) {
    std::vector<safetensors::declaration> tensors;
    const void* whose = nullptr;
    each_written(mesh, model, [&](const auto& parameter, std::size_t first, auto values) {
      if (std::exchange(whose, &parameter) != &parameter) tensors = tensors_of(parameter);
      each_tensor_part(std::span<const safetensors::declaration>(tensors), first, values,
                       [&](const safetensors::declaration& to, std::size_t begin, auto part) {
                         if (is_mine(to.name)) out.write(to.name, begin, part, at);
                       });
    });
  }
}

/// How files are cut.
struct export_options {
  std::uint64_t largest = safetensors::largest_file;  // bytes of tensors in one file; above, several and their index
};

/// Writes the parameters of all ranks' models into `folder`, which is there and which all ranks see: model.safetensors,
/// or several files and model.safetensors.index.json. Files of these names are replaced when all bytes are on the
/// medium. Collective over the mesh, outside of a step; what a `writer` of ranks throws, all throw.
template <lists_parameters Model, class Tensors = one_tensor_each>
void export_parameters(const mesh& mesh, Model& model, const std::string& folder, export_options options = {},
                       const Tensors& tensors_of = {}, where at = where::current()) {
  if (!is_rehearsed(mesh.world())) {
    const declared_tensors declared = tensors_of_mesh(mesh, model, tensors_of, at);
    safetensors::writer out(safetensors::written_by(mesh.control()), folder,
                            safetensors::file_division(declared.all, options.largest), at);
    const int stage = mesh.layout_coordinate().pipeline;
    write_parameters(
        mesh, model, out, tensors_of,
        [&](const std::string& name) { return declared.stage_of.find(name)->second == stage; }, at);
    out.commit(at);
  }
}

/// Adds to `names` those of `tensors`, which `parameter` is, of which this rank keeps a part.
template <class T>
void add_needed_tensors(const parameter_base<T>& parameter, std::span<const safetensors::declaration> tensors,
                        std::vector<std::string>& names) {
  parameter.each_held([&](std::size_t first, std::span<T> values) {
    each_tensor_part(tensors, first, values, [&](const safetensors::declaration& from, std::size_t, std::span<T>) {
      if (names.empty() || names.back() != from.name) names.push_back(from.name);
    });
  });
}

/// The names of the tensors of which this rank keeps a part.
template <lists_parameters Model, class Tensors = one_tensor_each>
[[nodiscard]] std::vector<std::string> needed_tensors(Model& model, const Tensors& tensors_of = {}) {
  std::vector<std::string> names;
  model.for_each_parameter([&](const auto& parameter) { add_needed_tensors(parameter, tensors_of(parameter), names); });
  return names;
}

/// Fills what this rank keeps of `parameter`, which is `tensors`; see `fill_parameters`.
template <class T, files_policy Files>
void fill_parameter(parameter_base<T>& parameter, std::span<const safetensors::declaration> tensors,
                    const safetensors::basic_folder<Files>& in, where at) {
  parameter.fill(
      [&](std::size_t first, std::span<T> values) {
        each_tensor_part(tensors, first, values,
                         [&](const safetensors::declaration& from, std::size_t begin, std::span<T> part) {
                           in.expect_shape(from.name, from.shape, at);
                           in.read_converted(from.name, begin, part, at);
                         });
      },
      at);
}

/// Fills what this rank keeps of every parameter, rounded where the tensors are wider. Throws file_error with file and
/// tensor: one that is missing or of another shape, or a file that ends too early.
template <lists_parameters Model, files_policy Files, class Tensors = one_tensor_each>
void fill_parameters(Model& model, const safetensors::basic_folder<Files>& in, const Tensors& tensors_of = {},
                     where at = where::current()) {
  model.for_each_parameter([&](auto& parameter) { fill_parameter(parameter, tensors_of(parameter), in, at); });
}

/// Fills the parameters of all ranks' models from `path`, a file or a folder as of `safetensors::folder`. Every rank
/// opens the files that hold a part of what it keeps, and reads those bytes alone. Collective over the mesh, outside
/// of a step: a file_error of one rank is thrown on all, with its number, and parameters are filled in part.
template <lists_parameters Model, class Tensors = one_tensor_each>
void import_parameters(const mesh& mesh, Model& model, const std::string& path, const Tensors& tensors_of = {},
                       where at = where::current()) {
  if (!is_rehearsed(mesh.world())) {
    mesh.control().barrier(at);  // nobody reads what is here, and is to be filled
    safetensors::file_agreement problems;
    problems.attempt([&] {
      const safetensors::folder in(path, needed_tensors(model, tensors_of), at);
      fill_parameters(model, in, tensors_of, at);
    });
    problems.agree(mesh.control(), at);
  }
}

}  // namespace belay::inline BELAY_ABI
