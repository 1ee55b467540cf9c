//! `#[flowfabric::task]`: the types of a task, read from the function that does it.
//!
//! The SDK re-exports the attribute; programs do not name this crate.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{FnArg, GenericArgument, ItemFn, LitStr, PathArguments, ReturnType, Signature, Type};

/// Makes the input of a durable function a `Task`: its kind is the function's name, its output what the function results in.
///
/// ```ignore
/// #[derive(Serialize, Deserialize)]
/// struct Summarize { text: String }
///
/// #[flowfabric::task]
/// async fn summarize(ctx: TaskContext, task: Summarize) -> Result<String, TaskError> { .. }
///
/// WorkerRuntime::new(config).serve(summarize);
/// let summary: String = client.submit(Summarize { text }).send().await?.result().await?;
/// ```
///
/// `#[flowfabric::task(kind = "summarize-text")]` names another kind. The input is a type of the program's own: each has
/// one function.
#[proc_macro_attribute]
pub fn task(arguments: proc_macro::TokenStream, function: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let item = TokenStream::from(function);
    let expanded = expand(arguments.into(), item.clone());
    // With the function beside it the error is the only one.
    expanded.unwrap_or_else(|error| [error.into_compile_error(), item].into_iter().collect()).into()
}

fn expand(arguments: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let named = named_kind(arguments)?;
    let function: ItemFn = syn::parse2(item)?;
    let signature = &function.sig;
    if signature.asyncness.is_none() {
        return Err(syn::Error::new(signature.fn_token.span, "the function of a task is async"));
    }
    if !signature.generics.params.is_empty() {
        return Err(syn::Error::new(signature.generics.span(), "the function of a task has no parameters of its own"));
    }
    let kind = named.unwrap_or_else(|| signature.ident.unraw().to_string());
    let (input, output) = (input_of(signature)?, output_of(signature)?);
    Ok(quote! {
        #function

        impl ::flowfabric::Task for #input {
            const KIND: &'static str = #kind;
            type Output = #output;
        }
    })
}

/// The kind of `kind = "..."`.
fn named_kind(arguments: TokenStream) -> syn::Result<Option<String>> {
    let mut kind = None;
    let parser = syn::meta::parser(|meta| {
        if !meta.path.is_ident("kind") {
            return Err(meta.error("only `kind = \"...\"` is known here"));
        }
        kind = Some(meta.value()?.parse::<LitStr>()?.value());
        Ok(())
    });
    syn::parse::Parser::parse2(parser, arguments)?;
    Ok(kind)
}

fn input_of(signature: &Signature) -> syn::Result<&Type> {
    let arguments: Vec<&FnArg> = signature.inputs.iter().collect();
    match arguments[..] {
        [FnArg::Typed(_), FnArg::Typed(input)] => Ok(&input.ty),
        _ => Err(syn::Error::new(signature.inputs.span(), "the function of a task takes its context and its input")),
    }
}

/// `T` of `Result<T, ...>`, whatever the result is called.
fn output_of(signature: &Signature) -> syn::Result<&Type> {
    let refused = || syn::Error::new(signature.output.span(), "the function of a task answers with a Result");
    let ReturnType::Type(_, answer) = &signature.output else { return Err(refused()) };
    let Type::Path(path) = &**answer else { return Err(refused()) };
    let arguments = path.path.segments.last().map(|segment| &segment.arguments);
    let Some(PathArguments::AngleBracketed(arguments)) = arguments else { return Err(refused()) };
    match arguments.args.first() {
        Some(GenericArgument::Type(output)) => Ok(output),
        _ => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(arguments: TokenStream, item: TokenStream) -> String {
        expand(arguments, item).unwrap_err().to_string()
    }

    #[test]
    fn the_types_are_those_of_the_function() {
        let function = quote! { async fn summarize(_: TaskContext<S>, task: Text) -> Result<Vec<u8>, TaskError> {} };
        let expanded = expand(TokenStream::new(), function.clone()).unwrap().to_string();
        let expected = quote! {
            #function

            impl ::flowfabric::Task for Text {
                const KIND: &'static str = "summarize";
                type Output = Vec<u8>;
            }
        };
        assert_eq!(expanded, expected.to_string());
        let named = expand(quote! { kind = "summarize-text" }, function).unwrap().to_string();
        assert!(named.contains(r#""summarize-text""#), "{named}");
    }

    #[test]
    fn a_function_that_is_no_task_is_told_why() {
        let none = TokenStream::new;
        let well = quote! { async fn f(ctx: C, task: T) -> Result<(), E> {} };
        assert!(refused(quote! { name = "f" }, well).contains("only `kind"));
        assert!(refused(none(), quote! { fn f(ctx: C, task: T) -> Result<(), E> {} }).contains("is async"));
        assert!(refused(none(), quote! { async fn f<X>(ctx: C, task: X) -> Result<(), E> {} }).contains("parameters"));
        assert!(refused(none(), quote! { async fn f(task: T) -> Result<(), E> {} }).contains("context and its input"));
        assert!(refused(none(), quote! { async fn f(ctx: C, task: T) {} }).contains("a Result"));
        assert!(refused(none(), quote! { async fn f(ctx: C, task: T) -> u32 {} }).contains("a Result"));
        assert!(expand(none(), quote! { struct T; }).is_err());
    }
}
