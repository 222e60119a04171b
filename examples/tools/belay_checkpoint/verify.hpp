// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Everything that is wrong with a checkpoint: its manifest in itself, every byte of its files, and whether every part
// of every tensor is there once. The manifest is from outside; what it claims is believed once a file has shown it.
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/train/checkpoint.hpp"
#include "belay/train/safetensors.hpp"
#include "tools/belay_checkpoint/checkpoint_list.hpp"
#include "tools/belay_checkpoint/contents.hpp"
#include "tools/belay_checkpoint/coverage.hpp"

namespace belay_checkpoint {

/// One thing that is wrong, and which parts of which tensors it touches.
struct fault {
  std::string file;
  std::uint64_t byte = 0;
  std::string what;
  std::vector<tensor_part> touches;
};

/// A checkpoint that was read, and all that is wrong with it.
struct verdict {
  std::string folder;
  std::uint64_t step = 0, tensors = 0, files = 0, bytes_read = 0;
  std::vector<fault> faults;
};

class verification {
 public:
  /// Reads the whole checkpoint in `folder`. What cannot be read is a fault, too.
  [[nodiscard]] static verdict of(const std::string& folder) {
    verification work(folder);
    if (work.read_manifest()) {
      work.check_names();
      for (std::size_t i = 0; i < work.content_.files.size(); ++i) work.check_file(i);
      for (const belay::manifest_tensor& each : work.content_.tensors) work.check_coverage(each);
    }
    return std::move(work.out_);
  }

 private:
  static constexpr std::size_t most_boxes = 64;  // that are named of one part of a tensor

  explicit verification(const std::string& folder) { out_.folder = folder; }

  [[nodiscard]] std::string manifest_path() const { return manifest_of(out_.folder); }
  [[nodiscard]] std::string path_of(std::size_t file) const { return out_.folder + "/" + content_.files[file].name; }
  void add(std::string file, std::uint64_t byte, std::string what, std::vector<tensor_part> touches = {}) {
    out_.faults.push_back({std::move(file), byte, std::move(what), std::move(touches)});
  }
  // Adds what `attempt` throws; false where it did.
  template <class Attempt>
  bool tried(std::vector<tensor_part> touches, Attempt&& attempt) {
    try {
      attempt();
      return true;
    } catch (const belay::file_error& problem) {
      add(problem.path(), problem.offset(), problem.message(), std::move(touches));
      return false;
    }
  }

  bool read_manifest() {
    const bool read = tried({}, [&] {
      const std::string text = belay::read_manifest_text(out_.folder);
      out_.bytes_read = text.size();
      content_ = belay::parse_manifest(text, manifest_path());
    });
    out_.step = content_.step;
    out_.tensors = content_.tensors.size();
    out_.files = content_.files.size();
    return read;
  }

  void check_names() {
    const std::string name = out_.folder.substr(out_.folder.rfind('/') + 1);
    if (name.starts_with("step-") && name != belay::checkpoint_name(content_.step))
      add(manifest_path(), 0,
          "is the manifest of step " + std::to_string(content_.step) + ", in the place of another step's");
    const auto expect_once = [&](const auto& all, const char* what, auto&& name_of) {
      std::set<std::string_view> names;
      for (const auto& each : all)
        if (!names.insert(name_of(each)).second)
          add(manifest_path(), 0, std::string("lists ") + what + " " + belay::printable(name_of(each)) + " twice");
    };
    const auto own_name = [](const auto& each) -> std::string_view { return each.name; };
    expect_once(content_.tensors, "tensor", own_name);
    expect_once(content_.files, "file", own_name);
    expect_once(content_.states, "state", [](const auto& each) -> std::string_view { return each.first; });
  }

  void check_file(std::size_t number) {
    const belay::manifest_file& expected = content_.files[number];
    const auto everything = [&] { return parts_between(content_, number, 0, expected.bytes); };
    std::optional<belay::safetensors::file> in;
    std::uint64_t size = 0;
    if (!tried(everything(), [&] {
          in.emplace(path_of(number), O_RDONLY | O_NONBLOCK, belay::where{});
          size = in->size(belay::where{});
        }))
      return;
    std::optional<belay::safetensors::reader> header;
    std::optional<belay::file_error> no_header;
    try {
      header.emplace(path_of(number));
    } catch (const belay::file_error& problem) {
      no_header = problem;
    }
    if (header && !is_ours(*header, number)) return;  // all that it holds is another file's
    if (size != expected.bytes) {
      const std::uint64_t end = std::min(size, expected.bytes);
      add(in->path(), end,
          "has " + std::to_string(size) + " bytes, its checkpoint says " + std::to_string(expected.bytes),
          parts_between(content_, number, end, expected.bytes));
    } else if (no_header) {
      add(no_header->path(), no_header->offset(), no_header->message(), everything());
    }
    check_chunks(*in, number, size);
    if (header && size == expected.bytes) check_ranges(*header, number, size);
  }

  // The header names checkpoint, step and file.
  bool is_ours(const belay::safetensors::reader& header, std::size_t number) {
    std::string id, name, step;
    for (const auto& [key, value] : header.metadata()) {
      if (key == "checkpoint") id = value;
      if (key == "file") name = value;
      if (key == "step") step = value;
    }
    const belay::manifest_file& expected = content_.files[number];
    if (id == content_.id && name == expected.name && step == belay::padded_step(content_.step)) return true;
    add(header.path(), 0,
        name.empty() ? std::string("is no file of a checkpoint")
                     : "is file " + belay::printable(name) + " of step " + belay::printable(step) + " of run " +
                           belay::printable(id) + ": it belongs to another place",
        parts_between(content_, number, 0, expected.bytes));
    return false;
  }

  // Neighbours that are damaged are one fault.
  void check_chunks(const belay::safetensors::file& in, std::size_t number, std::uint64_t size) {
    const belay::manifest_file& expected = content_.files[number];
    std::vector<std::byte> bytes(static_cast<std::size_t>(belay::checkpoint_chunk));
    std::uint64_t damaged_from = 0, damaged_to = 0;
    const auto tell = [&] {
      if (damaged_from < damaged_to)
        add(in.path(), damaged_from,
            "the " + std::to_string(damaged_to - damaged_from) + " bytes from here on do not match their checksums",
            parts_between(content_, number, damaged_from, damaged_to));
      damaged_from = damaged_to = 0;
    };
    for (std::size_t chunk = 0; chunk < expected.checksums.size(); ++chunk) {
      const std::uint64_t begin = chunk * belay::checkpoint_chunk;
      const std::uint64_t end = std::min(begin + belay::checkpoint_chunk, expected.bytes);
      if (end > size) break;  // its absence was told
      const auto here = std::span(bytes).first(static_cast<std::size_t>(end - begin));
      if (!tried(parts_between(content_, number, begin, expected.bytes), [&] { in.read(begin, here, belay::where{}); }))
        break;
      out_.bytes_read += here.size();
      if (belay::crc32c_of(here) == expected.checksums[chunk]) {
        tell();
        continue;
      }
      if (damaged_to == 0) damaged_from = begin;
      damaged_to = end;
    }
    tell();
  }

  // Every piece is a tensor of the file's header, and the other way round.
  void check_ranges(const belay::safetensors::reader& header, std::size_t number, std::uint64_t size) {
    const std::uint64_t data = size - (header.tensors().empty() ? 0 : header.tensors().back().end);
    std::set<std::string_view> known;
    for (const belay::manifest_tensor& tensor : content_.tensors)
      for (const belay::manifest_piece& piece : tensor.pieces) {
        if (piece.file != number) continue;
        const std::string name = piece.part == belay::value_part ? tensor.name : piece.part + "." + tensor.name;
        const belay::safetensors::tensor* const found = header.find(name);
        const auto refuse = [&](const std::string& what) {
          add(header.path(), piece.begin, what, {{tensor.name, piece.part}});
        };
        if (found == nullptr) {
          refuse("the file's header has no tensor " + belay::printable(name));
          continue;
        }
        known.insert(found->name);
        if (found->type != piece.type)
          refuse("the file's header says " + std::string(belay::safetensors::name(found->type)) + ", the manifest " +
                 std::string(belay::safetensors::name(piece.type)));
        if (data + found->begin != piece.begin || data + found->end != piece.begin + piece.bytes())
          refuse("the file's header says bytes " + std::to_string(data + found->begin) + " to " +
                 std::to_string(data + found->end) + ", the manifest " + std::to_string(piece.begin) + " to " +
                 std::to_string(piece.begin + piece.bytes()));
      }
    for (const belay::safetensors::tensor& each : header.tensors())
      if (!known.contains(each.name))
        add(header.path(), data + each.begin,
            "the file holds tensor " + belay::printable(each.name) + ", which the manifest does not place there");
  }

  void check_coverage(const belay::manifest_tensor& tensor) {
    std::vector<std::string> parts = parts_of(tensor);
    if (std::find(parts.begin(), parts.end(), belay::value_part) == parts.end()) parts.emplace_back(belay::value_part);
    for (const std::string& part : parts) {
      coverage held(tensor.shape);
      for (std::size_t i = 0; i < tensor.pieces.size(); ++i)
        if (tensor.pieces[i].part == part) held.add(i, tensor.pieces[i]);
      std::vector<wrong_box> wrong = held.wrong(most_boxes + 1);
      const bool more = wrong.size() > most_boxes;
      if (more) wrong.pop_back();
      for (const wrong_box& each : wrong) tell(tensor, part, each);
      if (more) add(manifest_path(), 0, "more of its elements are in no piece, or in several", {{tensor.name, part}});
    }
  }
  void tell(const belay::manifest_tensor& tensor, const std::string& part, const wrong_box& wrong) {
    const std::string elements =
        "elements " + wrong.box.text() + ", the first of which is element " + std::to_string(wrong.first) + ", are in ";
    if (wrong.pieces.empty()) return add(manifest_path(), 0, elements + "no piece", {{tensor.name, part}});
    std::string places;
    for (const std::size_t number : wrong.pieces) {
      const belay::manifest_piece& piece = tensor.pieces[number];
      places += (places.empty() ? ": " : ", ") + belay::printable(content_.files[piece.file].name) + " byte " +
                std::to_string(piece.begin);
    }
    const belay::manifest_piece& last = tensor.pieces[wrong.pieces.back()];
    add(path_of(last.file), last.begin, elements + std::to_string(wrong.pieces.size()) + " pieces" + places,
        {{tensor.name, part}});
  }

  belay::manifest content_;
  verdict out_;
};

}  // namespace belay_checkpoint
